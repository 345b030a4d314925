"""A release: its files, built twice; and the list of all its parts, exactly the entries of the two locks."""

import hashlib
import io
import json
import re
import tarfile
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deploy.release.__main__ import make_release
from deploy.release.bom import IMAGE_LOCK, ROOT, bill_of_materials
from deploy.release.requirements_lock import read_requirements, scopes
from pipeline.errors import PipelineError

REQUIREMENTS = (ROOT / "deploy" / "requirements.lock").read_text("utf-8")
JARS = (ROOT / "deploy" / "jvm" / "jars.lock").read_text("utf-8")


@pytest.fixture(scope="module")
def text() -> str:
    return bill_of_materials()


@pytest.fixture(scope="module")
def document(text: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def parts(document: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [part for part in document["components"] if part["purl"].startswith(f"pkg:{kind}/")]


def test_it_follows_the_published_schema(text: str) -> None:
    validation = pytest.importorskip("cyclonedx.validation.json", reason="needs cyclonedx-python-lib[json-validation]")
    schema = pytest.importorskip("cyclonedx.schema")
    validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_6)
    assert validator.validate_str(text) is None
    broken = text.replace('"Apache-2.0"', '"Apache 2"')
    assert validator.validate_str(broken) is not None, "the validator must find what is wrong"


def test_its_packages_are_those_of_the_lock_each_with_all_its_hashes(document: dict[str, Any]) -> None:
    in_lock: Counter[str] = Counter()
    name = ""
    for line in REQUIREMENTS.splitlines():
        if "==" in line:
            name = line.split(" ")[0].replace("==", "@")
        in_lock[name] += "--hash=sha256:" in line
    listed = {
        part["purl"].removeprefix("pkg:pypi/"): {
            digest["content"] for digest in part["externalReferences"][0]["hashes"]
        }
        for part in parts(document, "pypi")
    }
    assert {name: len(digests) for name, digests in listed.items()} == in_lock
    assert set().union(*listed.values()) == set(re.findall(r"sha256:([0-9a-f]{64})", REQUIREMENTS))


def test_its_jars_are_those_of_the_lock_each_with_its_hash(document: dict[str, Any]) -> None:
    in_lock = {tuple(line.split()[1:]) for line in JARS.splitlines() if line and not line.startswith("#")}
    listed = {
        (f"{part['group']}:{part['name']}:{part['version']}", part["hashes"][0]["content"])
        for part in parts(document, "maven")
    }
    assert listed == {(coordinates, digest) for coordinates, _origin, _size, digest in in_lock}
    assert len(parts(document, "maven")) == len(in_lock)


def test_nothing_else_is_listed_and_nothing_twice(document: dict[str, Any]) -> None:
    references = [part["bom-ref"] for part in document["components"]]
    assert len(references) == len(parts(document, "pypi")) + len(parts(document, "maven")) == len(set(references))


def test_a_second_writing_is_the_same_to_the_byte(text: str) -> None:
    assert bill_of_materials() == text


def test_another_version_of_a_part_gives_the_list_another_serial_number(tmp_path: Path, text: str) -> None:
    (tmp_path / "deploy" / "jvm").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text("utf-8"))
    (tmp_path / "deploy" / "jvm" / "jars.lock").write_text(JARS)
    (tmp_path / "deploy" / "requirements.lock").write_text(REQUIREMENTS.replace("\nnumpy==", "\nnumpy==9."))
    other = json.loads(bill_of_materials(tmp_path))
    assert other["serialNumber"] != json.loads(text)["serialNumber"]
    assert next(part for part in parts(other, "pypi") if part["name"] == "numpy")["version"].startswith("9.")


def test_it_tells_what_runs_from_what_only_builds_and_tests(document: dict[str, Any]) -> None:
    scope = {part["name"]: part["scope"] for part in document["components"]}
    assert (scope["pyarrow"], scope["pyspark"], scope["py4j"], scope["pytest"]) == (
        "required",
        "optional",
        "optional",
        "excluded",
    )


def test_an_extra_of_a_requirement_is_followed() -> None:
    # Nothing of the core but the extra `crc32c` of the Kafka client requires the package of that name.
    assert scopes(["crc32c"], ["kafka-python[crc32c]"], []) == {"crc32c": "required"}
    assert scopes(["crc32c"], ["kafka-python"], []) == {"crc32c": "excluded"}


def test_a_lock_without_hashes_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text("numpy==2.4.0\nrich==14.0.0 \\\n    --hash=sha256:" + "0" * 64 + "\n")
    with pytest.raises(ValueError, match="must hold packages with hashes; got none for numpy"):
        read_requirements(lock)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a release, by name."""
    files = make_release(tmp_path_factory.mktemp("release") / "dist")
    return {path.name: path.read_bytes() for path in files}


@pytest.mark.long
def test_a_release_has_all_its_files_under_the_version_of_the_project(released: dict[str, bytes], text: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert sorted(released) == [
        "SHA256SUMS",
        f"kafka-quota-pipeline-{version}.cdx.json",
        f"kafka_quota_pipeline-{version}-py3-none-any.whl",
        f"kafka_quota_pipeline-{version}.tar.gz",
        f"kquota-image-{version}.cdx.json",
        f"kquota-reporter-{version}.jar",
    ]
    assert released[f"kafka-quota-pipeline-{version}.cdx.json"].decode() == text


@pytest.mark.long
def test_its_sums_are_those_of_its_files(released: dict[str, bytes]) -> None:
    sums = dict(line.split("  ")[::-1] for line in released["SHA256SUMS"].decode().splitlines())
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in released.items() if name in sums}
    assert len(sums) == len(released) - 1


@pytest.mark.long
def test_its_sources_have_the_recipe_of_the_image(released: dict[str, bytes]) -> None:
    (sources,) = (content for name, content in released.items() if name.endswith(".tar.gz"))
    with tarfile.open(fileobj=io.BytesIO(sources)) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"deploy/image/Dockerfile", "deploy/image/make.sh", "deploy/requirements.lock", ".dockerignore"} <= names


@pytest.mark.long
def test_the_list_of_the_image_has_its_packages_and_no_test_tools(released: dict[str, bytes]) -> None:
    (listed,) = (json.loads(content) for name, content in released.items() if name.startswith("kquota-image"))
    lock = read_requirements(ROOT / IMAGE_LOCK)
    assert {part["name"] for part in parts(listed, "pypi")} == {package.name for package in lock}
    assert "pytest" not in {part["name"] for part in listed["components"]}


def test_builds_that_differ_are_refused_with_the_name_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(folder: Path) -> Path:
        folder.mkdir()
        (folder / "SHA256SUMS").write_text(f"{folder.name}  kquota.whl\n0  same\n")
        return folder / "SHA256SUMS"

    monkeypatch.setattr("deploy.release.__main__._build", build)
    with pytest.raises(PipelineError, match=r"two builds of the same sources differ: kquota\.whl"):
        make_release(tmp_path / "dist")
    assert not (tmp_path / "dist").exists()
