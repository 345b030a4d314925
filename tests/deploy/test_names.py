"""Every command, flag, setting, port, address and file that deploy/ names exists."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from pipeline.cli.main import app
from pipeline.settings.loading import OTHER_VARIABLES, load_settings, unknown_variables
from tests.deploy.commands import (
    BASE,
    DEPLOY,
    OVERLAYS,
    UNITS,
    VERSION,
    Program,
    bundle,
    compose_file,
    programs,
    rendered,
    unit_lines,
)

ROOT = DEPLOY.parent
FILES = [path for path in sorted(DEPLOY.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
SETTINGS_FILES = sorted(DEPLOY.rglob("kquota.toml"))
PROGRAMS = {"run", "gate", "meter prometheus", "quotas sync", "dashboard", "topics create"}
WITHOUT_UNIT = {"topics create", "meter reporter", "meter enable"}
"""They end by themselves: compose runs them before others, elsewhere an operator does."""
# What each program serves; that it does so is tested in test_health.py and beside the program.
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
    for path in [*pages, *(file for file in FILES if file.suffix != ".lock")]:
        versions = re.findall(r"(?:kquota:|newTag: |kafka_quota_pipeline-)(\d+\.\d+\.\d+)", path.read_text("utf-8"))
        named |= {path.name: versions} if versions else {}
    assert len(named) >= 8
    assert {name: versions for name, versions in named.items() if set(versions) != {VERSION}} == {}


def test_every_program_is_started_somewhere_by_each_way_that_has_it() -> None:
    started = {program.name for program in ALL}
    assert started == PROGRAMS | WITHOUT_UNIT
    assert {unit_program(unit) for unit in UNITS} == PROGRAMS - WITHOUT_UNIT


def unit_program(unit: Path) -> str:
    return next(program.name for program in ALL if program.where == unit.name)


def test_the_image_sets_no_setting_because_a_settings_file_could_not_change_it() -> None:
    text = (DEPLOY / "image" / "Dockerfile").read_text("utf-8")
    names = set(re.findall(r"\b(KQUOTA_\w+)=", text))
    assert "KQUOTA_CACHE" in names
    assert names - set(OTHER_VARIABLES) == set()


def test_the_settings_files_of_kubernetes_and_systemd_have_only_settings_that_exist() -> None:
    roots = {path.parent.name: load_settings(path).tables.root for path in SETTINGS_FILES}
    assert roots.keys() == {"base", "systemd"}
    assert all(root.startswith("/var/lib/kquota") for root in roots.values())


def test_every_long_running_container_has_a_probe() -> None:
    in_containers = [one for one in ALL if one.where not in {unit.name for unit in UNITS}]
    without = [one.where for one in in_containers if not one.probed]
    assert without == ["compose.yaml jar", "compose.yaml topics", "compose.yaml metering", "bundle kquota"]


def test_the_compose_file_publishes_and_scrapes_only_ports_that_are_listened_on() -> None:
    ports = {one.where.split()[1]: one.ports for one in ALL if one.where.startswith("compose.yaml")}
    for name, service in compose_file()["services"].items():
        for published in service.get("ports", ()):
            assert published.startswith("127.0.0.1:")
            assert int(published.rpartition(":")[2]) in ports.get(name, {9092, 9090, 3000})
    scraped = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text("utf-8"))["scrape_configs"]
    for target in _targets(scraped):
        name, _, port = target.partition(":")
        assert int(port) in ports[name]


def _targets(scraped: list[dict[str, Any]]) -> Iterator[str]:
    for one in scraped:
        for group in one.get("static_configs", ()):
            yield from group["targets"]
        for found in one.get("dns_sd_configs", ()):
            yield from (f"{name}:{found['port']}" for name in found["names"])


@pytest.mark.parametrize("folder", OVERLAYS, ids=lambda folder: folder.name)
def test_a_service_leads_to_a_port_of_a_pod(folder: Path) -> None:
    objects = rendered(folder)
    open_ports = {port for program in ALL if program.where.startswith(folder.name) for port in program.ports}
    for one in objects:
        if one["kind"] == "Service":
            for port in one["spec"]["ports"]:
                named = {
                    entry["name"]: entry["containerPort"] for pod in _pods(objects) for entry in _container_ports(pod)
                }
                target = port["targetPort"]
                assert named.get(target, target) in open_ports


@pytest.mark.parametrize("folder", OVERLAYS, ids=lambda folder: folder.name)
def test_a_pod_mounts_only_volumes_and_config_maps_that_are_there(folder: Path) -> None:
    objects = rendered(folder)
    config_maps = {one["metadata"]["name"] for one in objects if one["kind"] == "ConfigMap"}
    claims = {one["metadata"]["name"] for one in objects if one["kind"] == "PersistentVolumeClaim"}
    for one in objects:
        for pod in _pods([one]):
            templates = {each["metadata"]["name"] for each in one["spec"].get("volumeClaimTemplates", ())}
            volumes = {volume["name"]: volume for volume in pod.get("volumes", one["spec"].get("volumes", ()))}
            for container in pod["containers"]:
                mounts = {mount["name"] for mount in container.get("volumeMounts", ())}
                assert mounts <= volumes.keys() | templates
            for volume in volumes.values():
                assert volume.get("configMap", {}).get("name") in {None, *config_maps}
                assert volume.get("persistentVolumeClaim", {}).get("claimName") in {None, *claims}


def _pods(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for one in objects:
        spec = one.get("spec", {})
        if one["kind"] == "SparkApplication":
            pod = spec.get("driverSpec", {}).get("podTemplateSpec") or spec["driver"]["template"]
            yield pod["spec"]
        elif "containers" in spec.get("template", {}).get("spec", {}):
            yield spec["template"]["spec"]


def _container_ports(pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for container in pod["containers"]:
        yield from container.get("ports", ())


def test_there_is_one_driver_by_construction() -> None:
    for folder in OVERLAYS:
        drivers = [one for one in rendered(folder) if one["metadata"]["name"] == "kquota-job" and _starts_a_job(one)]
        (driver,) = drivers
        assert driver["kind"] == "SparkApplication" or driver["spec"]["replicas"] == 1
    (job,) = [job for job in bundle()["resources"]["jobs"].values() if "continuous" in job]
    assert job["max_concurrent_runs"] == 1


def _starts_a_job(one: dict[str, Any]) -> bool:
    return one["kind"] in {"StatefulSet", "Deployment", "SparkApplication"}


def test_a_unit_is_not_started_again_after_what_a_restart_can_not_mend() -> None:
    for unit in UNITS:
        lines = unit_lines(unit)
        assert (lines["Restart"], lines["RestartPreventExitStatus"]) == ("on-failure", NOT_AGAIN)


def test_the_files_that_the_image_is_made_of_are_there_and_are_sent_to_the_builder() -> None:
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")]
    assert all((ROOT / one).exists() for one in sent)
    scripts = (DEPLOY / "image" / "make.sh").read_text("utf-8")
    named = set(re.findall(r"deploy/image/[\w./-]+", scripts)) | {"deploy/jvm/jars.lock"}
    for name in named - {"deploy/image/make.sh"}:
        assert (ROOT / name).is_file(), name
        assert any(Path(name).is_relative_to(one) for one in sent), name


def test_the_files_that_the_bundle_names_are_there() -> None:
    folder, resources = DEPLOY / "databricks" / "resources", bundle()["resources"]
    named = [task["spark_python_task"]["python_file"] for job in resources["jobs"].values() for task in job["tasks"]]
    named += [dashboard["file_path"] for dashboard in resources["dashboards"].values()]
    assert [name for name in named if not (folder / name).is_file()] == []
    used = set(re.findall(r"\$\{var\.(\w+)\}", json.dumps(bundle())))
    assert used | {"settings_volume"} == set(bundle()["variables"])


def test_the_settings_of_kubernetes_are_those_that_its_pods_mount() -> None:
    (config_map,) = (one for one in rendered(BASE) if one["kind"] == "ConfigMap")
    assert config_map["data"]["kquota.toml"] == (BASE / "kquota.toml").read_text("utf-8")
