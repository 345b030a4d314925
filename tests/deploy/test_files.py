"""The files of deploy/: what they name exists; published schemas and the programs that read them accept them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from pipeline.cli.main import app
from pipeline.job.job_run import places_on_one_node
from pipeline.settings.model import load_settings, unknown_variables
from tests.deploy.commands import (
    BASE,
    DEPLOY,
    OVERLAYS,
    UNITS,
    VERSION,
    Program,
    bundle,
    checker,
    compose_file,
    manifest_programs,
    mistakes_by,
    of_the_system,
    programs,
    rendered,
    run,
    unit_lines,
)
from tests.pages.blocks import ROOT, blocks_of

# What each program serves. The tests of each program, and test_state.py, check that it does so.
SERVED = {
    "gate": {"/healthz", "/metrics"},
    "dashboard": {"/healthz", "/readyz"},
    "run": {"/metrics"},
    "meter prometheus": {"/metrics"},
    "quotas sync": {"/metrics"},
}


ALL = list(programs())


# From the restart rules of docs/runbook.md: a restart mends neither settings nor a second driver nor refused data.
NOT_AGAIN = "2 4 5"


@pytest.mark.parametrize("program", ALL, ids=lambda one: one.where)
def test_a_program_is_started_with_flags_and_variables_that_it_takes_and_asked_where_it_answers(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    command: Any = get_command(app)
    words = list(program.words)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context(program.name, words)  # fails on a flag or value that it does not take
    ours = {name: value for name, value in program.variables.items() if name.startswith("KQUOTA_")}
    assert unknown_variables(ours) == {}
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    load_settings()
    for port, path in program.probed:
        assert port in program.ports
        assert path in SERVED[program.name]


def test_images_and_wheels_are_named_after_the_release() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    named: dict[str, list[str]] = {}
    files = [path for path in sorted(DEPLOY.rglob("*")) if path.is_file() and path.suffix not in {".pyc", ".lock"}]
    for path in [*pages, *files]:
        versions = re.findall(r"(?:kquota:|newTag: |kafka_quota_pipeline-)(\d+\.\d+\.\d+)", path.read_text("utf-8"))
        named |= {path.name: versions} if versions else {}
    assert len(named) >= 8
    assert {name: versions for name, versions in named.items() if set(versions) != {VERSION}} == {}


def test_the_settings_files_of_kubernetes_and_systemd_have_only_settings_that_exist() -> None:
    roots = {path.parent.name: load_settings(path).tables.root for path in sorted(DEPLOY.rglob("kquota.toml"))}
    assert roots.keys() == {"base", "systemd"}
    assert all(root.startswith("/var/lib/kquota") for root in roots.values())


def test_the_compose_file_publishes_and_scrapes_only_ports_that_are_listened_on() -> None:
    ports = {one.where.split()[1]: one.ports for one in ALL if one.where.startswith("compose.yaml")}
    for name, service in compose_file()["services"].items():
        for published in service.get("ports", ()):
            assert published.startswith("127.0.0.1:")
            assert int(published.rpartition(":")[2]) in ports.get(name, {9092, 9090, 3000})
    scraped = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text("utf-8"))["scrape_configs"]
    targets = {target for listed in values_of("targets", scraped) for target in listed}
    targets |= {f"{name}:{found['port']}" for one in values_of("dns_sd_configs", scraped) for found in one
                for name in found["names"]}  # fmt: skip
    assert len(targets) >= 3
    for name, _, port in (target.partition(":") for target in targets):
        assert int(port) in ports[name]


def values_of(key: str, node: Any) -> Iterator[Any]:
    for name, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        if name == key:
            yield value
        yield from values_of(key, value)


def names_of(key: str, node: Any, name: str = "name") -> set[str]:
    """The names in every list, or in every mapping, that has this key."""
    return {each[name] for value in values_of(key, node) for each in (value if isinstance(value, list) else [value])}


each_overlay = pytest.mark.parametrize("folder", OVERLAYS, ids=lambda folder: folder.name)


@each_overlay
def test_a_service_leads_to_a_port_of_a_pod(folder: Path) -> None:
    objects = rendered(folder)
    open_ports = {port for program in ALL if program.where.startswith(folder.name) for port in program.ports}
    ports = [port for listed in values_of("ports", objects) for port in listed]
    named = {port["name"]: port["containerPort"] for port in ports if "containerPort" in port}
    targets = {port["targetPort"] for port in ports if "targetPort" in port}
    assert {named.get(target, target) for target in targets} <= open_ports


@each_overlay
def test_a_pod_mounts_only_volumes_and_config_maps_that_are_there(folder: Path) -> None:
    objects = rendered(folder)
    made = {(one["kind"], one["metadata"]["name"]) for one in objects}
    for one in objects:
        templates = {each["metadata"]["name"] for listed in values_of("volumeClaimTemplates", one) for each in listed}
        assert names_of("volumeMounts", one) <= names_of("volumes", one) | templates
        assert {("ConfigMap", name) for name in names_of("configMap", one)} <= made
        claims = names_of("persistentVolumeClaim", one, "claimName")
        assert {("PersistentVolumeClaim", name) for name in claims} <= made


def test_there_is_one_driver_by_construction() -> None:
    for folder in OVERLAYS:
        kinds = {"StatefulSet", "Deployment", "SparkApplication"}
        (driver,) = (
            one for one in rendered(folder) if one["metadata"]["name"] == "kquota-job" and one["kind"] in kinds
        )
        assert driver["kind"] == "SparkApplication" or driver["spec"]["replicas"] == 1
    (job,) = [job for job in bundle()["resources"]["jobs"].values() if "continuous" in job]
    assert job["max_concurrent_runs"] == 1


def test_a_unit_is_not_started_again_after_what_a_restart_can_not_mend() -> None:
    for unit in UNITS:
        lines = unit_lines(unit)
        assert (lines["Restart"], lines["RestartPreventExitStatus"]) == ("on-failure", NOT_AGAIN)


def test_the_files_that_the_bundle_names_are_there() -> None:
    folder, resources = DEPLOY / "databricks" / "resources", bundle()["resources"]
    named = [task["spark_python_task"]["python_file"] for job in resources["jobs"].values() for task in job["tasks"]]
    named += [dashboard["file_path"] for dashboard in resources["dashboards"].values()]
    assert [name for name in named if not (folder / name).is_file()] == []
    used = set(re.findall(r"\$\{var\.(\w+)\}", json.dumps(bundle())))
    assert used | {"settings_volume"} == set(bundle()["variables"])


COMPOSE = DEPLOY / "compose"


def test_the_compose_file_is_valid_and_what_its_services_need_is_there() -> None:
    whole = compose_file()
    for service in whole["services"].values():
        assert set(service.get("depends_on", ())) <= set(whole["services"])
        assert set(service.get("secrets", ())) <= set(whole["secrets"])
        named = [volume.split(":")[0] for volume in service.get("volumes", ())]
        assert [name for name in named if name not in whole["volumes"] and not (COMPOSE / name).is_file()] == []
        if service["image"].startswith("kquota:"):
            assert (service["cap_drop"], service["read_only"]) == (["ALL"], True), "nothing can gain rights"
    build = whole["services"]["job"]["build"]
    assert (COMPOSE / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "image" / "Dockerfile"
    done = run(checker("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", COMPOSE / "compose.yaml")
    assert done.returncode == 0, done.stdout


def test_promtool_accepts_the_configuration_of_prometheus(tmp_path: Path) -> None:
    promtool = of_the_system("promtool", "prometheus")
    text = (COMPOSE / "prometheus.yml").read_text("utf-8")
    (tmp_path / "rules.yml").symlink_to(DEPLOY / "prometheus" / "rules.yml")
    token = tmp_path / "gate-token"
    token.write_text("0", "utf-8")
    (tmp_path / "prometheus.yml").write_text(text.replace("/run/secrets/gate-token", str(token)), "utf-8")
    done = run(promtool, "check", "config", tmp_path / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_secrets_are_made_once(tmp_path: Path) -> None:
    script = tmp_path / "secrets.sh"
    script.write_bytes((COMPOSE / "secrets.sh").read_bytes())
    assert run("/bin/sh", script).stdout
    made = {path.name: path.read_text("utf-8") for path in (tmp_path / "secrets").iterdir()}
    assert made.keys() == {Path(one["file"]).name for one in compose_file()["secrets"].values()}
    assert {len(secret) for secret in made.values()} == {32}
    assert run("/bin/sh", script).stdout == ""
    assert made == {path.name: path.read_text("utf-8") for path in (tmp_path / "secrets").iterdir()}


OPERATED = {"kubeflow-spark-operator": "sparkoperator.k8s.io/v1beta2", "apache-spark-operator": "spark.apache.org/v1"}


@each_overlay
def test_every_pod_keeps_to_the_restricted_standard(folder: Path) -> None:
    for pod in pod_specs(rendered(folder)):
        own = pod["securityContext"]
        assert (own["runAsNonRoot"], own["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["allowPrivilegeEscalation"] is False


def pod_specs(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What makes the pods; kubeflow's operator has it in words of its own."""
    for one in objects:
        if one["apiVersion"] == OPERATED["kubeflow-spark-operator"]:
            for role in (one["spec"]["driver"], one["spec"]["executor"]):
                yield {"securityContext": role["podSecurityContext"], "containers": [role]}
        else:
            templates = [*values_of("template", one), *values_of("podTemplateSpec", one)]
            yield from (template["spec"] for template in templates if "containers" in template.get("spec", {}))


def test_the_overlay_of_the_page_renders_with_the_image_and_the_settings_of_the_site(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "deploy-kubernetes.md").read_text("utf-8")
    (text,) = (block.text for block in blocks_of(page) if block.language == "yaml")
    site = tmp_path / "kquota-site"
    site.mkdir()
    (tmp_path / "kquota").symlink_to(ROOT)
    (site / "kustomization.yaml").write_text(text, "utf-8")
    (site / "kquota.toml").write_text('job = "of-the-site"\n', "utf-8")
    objects = rendered(site)
    images = {pod["image"] for spec in pod_specs(objects) for pod in spec["containers"]}
    assert images == {f"registry.example.com/platform/kquota:{VERSION}"}
    (config_map,) = (one for one in objects if one["kind"] == "ConfigMap")
    assert config_map["data"] == {"kquota.toml": 'job = "of-the-site"\n'}
    (job,) = (one for one in objects if one["kind"] == "StatefulSet")
    assert config_map["metadata"]["name"] in names_of("configMap", job)


@pytest.mark.parametrize("overlay", OPERATED)
def test_the_next_driver_finds_the_state_of_the_one_before(
    overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes chooses a node for each driver; `kquota run` refuses state that would stay on the node before."""
    folder = BASE.parent / "overlays" / overlay
    (program,) = (one for one in manifest_programs(folder) if one.name == "run")
    (config_map,) = (one for one in rendered(folder) if one["kind"] == "ConfigMap")
    file = tmp_path / "kquota.toml"
    file.write_text(config_map["data"]["kquota.toml"], "utf-8")
    for name, value in program.variables.items():
        monkeypatch.setenv(name, value)
    assert list(places_on_one_node(load_settings(file))) == []


@pytest.mark.parametrize("version", ["1.31.0", "1.37.0"])
@each_overlay
def test_the_objects_are_those_of_the_schemas_of_kubernetes(folder: Path, version: str, tmp_path: Path) -> None:
    path = tmp_path / "rendered.yaml"
    native = [one for one in rendered(folder) if not one["kind"].startswith("Spark")]
    path.write_text(yaml.safe_dump_all(native), "utf-8")
    done = run(checker("kubernetes-validate"), "--strict", "--quiet", "-k", version, path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_models_of_the_kubeflow_operator_know_all_of_its_application() -> None:
    objects = rendered(BASE.parent / "overlays" / "kubeflow-spark-operator")
    (application,) = (one for one in objects if one["kind"] == "SparkApplication")
    assert mistakes_by("kubeflow", application) == ""


def test_the_models_of_databricks_take_all_resources() -> None:
    assert mistakes_by("bundle", bundle()["resources"]) == ""


MOST_EXPOSED = 2.0


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_a_unit_that_exposes_little(unit: Path, tmp_path: Path) -> None:
    """As it would be installed, with a program that is there; a template as its instance 1."""
    analyze = of_the_system("systemd-analyze", "systemd")
    installed = tmp_path / unit.name.replace("@.", "@1.")
    installed.write_text(unit.read_text("utf-8").replace("/opt/kquota/.venv/bin/kquota", "/bin/true"), "utf-8")
    done = run(analyze, "verify", "--man=no", installed)
    assert (done.returncode, done.stderr) == (0, "")
    told = run(analyze, "security", "--offline=true", installed).stdout
    (level,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", told)
    assert float(level) <= MOST_EXPOSED
