"""The manifests, as kubectl renders them, against the schemas of Kubernetes and of the Kubeflow operator."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.job.take_over import places_on_one_node
from pipeline.settings.loading import load_settings
from tests.deploy.checkers import checker, mistakes_by, run
from tests.deploy.commands import BASE, OVERLAYS, VERSION, manifest_programs, rendered
from tests.pages.blocks import ROOT, blocks_of

VERSIONS = ["1.31.0", "1.37.0"]
OPERATED = {"kubeflow-spark-operator": "sparkoperator.k8s.io/v1beta2", "apache-spark-operator": "spark.apache.org/v1"}


def operated(overlay: str) -> dict[str, Any]:
    """The one object of an overlay that an operator keeps."""
    objects = rendered(BASE.parent / "overlays" / overlay)
    (found,) = (one for one in objects if one["kind"] in {"SparkApplication", "SparkCluster"})
    return copy.deepcopy(found)


def validated(objects: list[dict[str, Any]], version: str, folder: Path) -> str:
    path = folder / "rendered.yaml"
    path.write_text(yaml.safe_dump_all(objects), "utf-8")
    done = run(checker("kubernetes-validate"), "--strict", "--quiet", "-k", version, path)
    return done.stdout + done.stderr if done.returncode else ""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", OVERLAYS, ids=lambda folder: folder.name)
def test_the_objects_are_those_of_the_schemas_of_kubernetes(folder: Path, version: str, tmp_path: Path) -> None:
    native = [one for one in rendered(folder) if not one["kind"].startswith("Spark")]
    assert validated(native, version, tmp_path) == ""


def test_a_field_that_kubernetes_does_not_have_is_found(tmp_path: Path) -> None:
    objects = copy.deepcopy(rendered(BASE))
    job = next(one for one in objects if one["kind"] == "StatefulSet")
    job["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    assert "livenesProbe" in validated(objects, VERSIONS[-1], tmp_path)


@pytest.mark.parametrize("folder", OVERLAYS, ids=lambda folder: folder.name)
def test_every_pod_keeps_to_the_restricted_standard(folder: Path) -> None:
    for pod in pod_specs(rendered(folder)):
        own = pod["securityContext"]
        assert (own["runAsNonRoot"], own["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["allowPrivilegeEscalation"] is False


def pod_specs(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [one["spec"]["template"]["spec"] for one in objects if "containers" in _template(one)]
    for one in objects:
        spec = one.get("spec", {})
        if one["apiVersion"] == OPERATED["apache-spark-operator"] and one["kind"] == "SparkApplication":
            found += [spec[role]["podTemplateSpec"]["spec"] for role in ("driverSpec", "executorSpec")]
        if one["kind"] == "SparkCluster":
            roles = ("masterSpec", "workerSpec")
            found += [spec[role]["statefulSetSpec"]["template"]["spec"] for role in roles]
        if one["apiVersion"] == OPERATED["kubeflow-spark-operator"]:
            for role in (spec["driver"], spec["executor"]):
                found += [{"securityContext": role["podSecurityContext"], "containers": [role]}]
    return found


def _template(one: dict[str, Any]) -> Any:
    return one.get("spec", {}).get("template", {}).get("spec", {}) if one["kind"] != "SparkCluster" else {}


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
    mounted = {volume.get("configMap", {}).get("name") for volume in job["spec"]["template"]["spec"]["volumes"]}
    assert config_map["metadata"]["name"] in mounted


@pytest.mark.parametrize("overlay", OPERATED)
def test_the_application_is_of_the_operator_and_the_job_of_the_base_is_gone(overlay: str) -> None:
    assert operated(overlay)["apiVersion"] == OPERATED[overlay]
    kinds = {(one["kind"], one["metadata"]["name"]) for one in rendered(BASE.parent / "overlays" / overlay)}
    assert ("StatefulSet", "kquota-job") not in kinds


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


def test_the_models_of_the_kubeflow_operator_know_all_of_its_application() -> None:
    assert mistakes_by("kubeflow", operated("kubeflow-spark-operator")) == ""


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda spec: spec["driver"].update(memoryOverHead="2g"), "memoryOverHead"),
        (lambda spec: spec.pop("mainApplicationFile"), "mainApplicationFile"),
        (lambda spec: spec["executor"].update(instances="two"), "instances"),
    ],
)
def test_a_mistake_in_the_application_is_found_by_those_models(spoil: Any, told: str) -> None:
    spoilt = operated("kubeflow-spark-operator")
    spoil(spoilt["spec"])
    assert told in mistakes_by("kubeflow", spoilt)
