"""The programs of kquota that the files of deploy/ start, and the programs that judge these files.

Compose file, manifests (rendered by kubectl), Databricks bundle, systemd units and image are read as data, so that a
test can hold them against the command line and the settings. Schemas and linters are in the environment that
`make deploy-check` makes: they are large, and only these tests need them.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
BASE: Final = DEPLOY / "kubernetes" / "base"
OVERLAYS: Final = (BASE, *sorted((DEPLOY / "kubernetes" / "overlays").iterdir()))
UNITS: Final = tuple(sorted((DEPLOY / "systemd").glob("*.service")))
VERSION: Final = str(tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text("utf-8"))["project"]["version"])
_IMAGE: Final = f"kquota:{VERSION}"


@dataclass(frozen=True, slots=True)
class Program:
    """One command of kquota that a file starts: it has variables, and is asked for (port, path) by probes."""

    where: str
    words: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    probed: frozenset[tuple[int, str]] = frozenset()

    @property
    def name(self) -> str:
        """Of the program: the first word, and of a group the second too."""
        two = self.words[0] in {"meter", "quotas", "topics"}
        return " ".join(self.words[: 2 if two else 1])

    @property
    def ports(self) -> frozenset[int]:
        named = dict(zip(self.words, self.words[1:], strict=False))
        own = {"gate": named.get("--listen", ":8787"), "dashboard": named.get("--port", "8788")}.get(self.words[0])
        return frozenset(int(one.rpartition(":")[2]) for one in (named.get("--metrics-port"), own) if one)


def compose_file() -> Any:
    return yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text("utf-8"))


def locked(lock: Path) -> dict[str, set[str]]:
    """The packages of a lock, each `name@version`, with the hashes of their files."""
    entry = re.compile(r"^([\w.-]+)==(\S+)(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
    entries = entry.findall(lock.read_text("utf-8"))
    return {f"{name}@{version}": set(re.findall(r"sha256:([0-9a-f]{64})", rest)) for name, version, rest in entries}


@cache
def rendered(folder: Path) -> list[dict[str, Any]]:
    """The objects that kubectl makes of a folder; the test is skipped without it."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("needs kubectl, for `kubectl kustomize`")
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def bundle() -> dict[str, Any]:
    folder = DEPLOY / "databricks"
    whole: dict[str, Any] = yaml.safe_load((folder / "databricks.yml").read_text("utf-8"))
    whole["resources"] = {}
    for path in sorted(folder.glob("resources/*.yml")):
        for kind, named in yaml.safe_load(path.read_text("utf-8"))["resources"].items():
            whole["resources"].setdefault(kind, {}).update(named)
    return whole


def unit_lines(unit: Path) -> dict[str, str]:
    """The settings of a systemd unit; of a key that is there twice the last one."""
    pairs = (line.partition("=") for line in unit.read_text("utf-8").splitlines() if re.match(r"\w+=", line))
    return {key: value for key, _, value in pairs}


def programs() -> Iterator[Program]:
    yield from (*compose_programs(), *unit_programs(), *bundle_programs())
    if shutil.which("kubectl") is not None:
        for folder in OVERLAYS:
            yield from manifest_programs(folder)


def compose_programs() -> Iterator[Program]:
    for name, service in compose_file()["services"].items():
        if service["image"] == _IMAGE:
            probe = _probed_by(service["healthcheck"].get("test", ()))
            variables = {key: str(value) for key, value in service["environment"].items()}
            yield Program(f"compose.yaml {name}", service["command"], variables, frozenset(probe))


def unit_programs() -> Iterator[Program]:
    for unit in UNITS:
        lines = unit_lines(unit)
        command, *words = shlex.split(lines["ExecStart"].replace("%i", "1"))
        assert command == "/opt/kquota/.venv/bin/kquota"
        variables = dict(entry.split("=", 1) for entry in shlex.split(lines["Environment"]))
        yield Program(unit.name, words, variables)


def bundle_programs() -> Iterator[Program]:
    for name, job in bundle()["resources"]["jobs"].items():
        clusters = {one["job_cluster_key"]: one["new_cluster"] for one in job["job_clusters"]}
        for task in job["tasks"]:
            if task["spark_python_task"]["python_file"].endswith("kquota_job.py"):
                variables = clusters[task["job_cluster_key"]]["spark_env_vars"]
                yield Program(f"bundle {name}", task["spark_python_task"]["parameters"], variables)


def manifest_programs(folder: Path) -> Iterator[Program]:
    """Containers of pods with the image of kquota, and the two kinds of SparkApplication."""
    for one in rendered(folder):
        where = f"{folder.name} {one['kind']}"
        spec = one.get("spec", {})
        if one["kind"] == "SparkApplication":
            pod = spec.get("driverSpec", {}).get("podTemplateSpec") or spec["driver"]["template"]
            (container,) = pod["spec"]["containers"]
            words = spec.get("driverArgs") or spec["arguments"]
            yield Program(where, words, _variables_of(container), frozenset(_probes_of(container)))
        elif "template" in spec:
            for container in spec["template"]["spec"]["containers"]:
                where = f"{folder.name} {one['metadata']['name']} {container['name']}"
                assert container["image"] == _IMAGE
                yield Program(where, container["args"], _variables_of(container), frozenset(_probes_of(container)))


def _variables_of(container: Mapping[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container.get("env", ())}


def _probes_of(container: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container.get(kind, {})
        if "httpGet" in probe:
            yield ports[probe["httpGet"]["port"]], probe["httpGet"]["path"]
        yield from _probed_by(probe.get("exec", {}).get("command", ()))


def _probed_by(command: Sequence[str]) -> Iterator[tuple[int, str]]:
    for port, path in re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", json.dumps(list(command))):
        yield int(port), path


ENVIRONMENT: Final = Path(os.environ.get("DEPLOY_CHECK", DEPLOY.parent / ".venv" / "deploy-check"))


def checker(name: str) -> str:
    """The path of a program of that environment; the test is skipped without it."""
    path = ENVIRONMENT / "bin" / name
    if not path.exists():
        pytest.skip(f"needs {ENVIRONMENT.name}/bin/{name}: `make deploy-check` installs it")
    return str(path)


def of_the_system(name: str, package: str) -> str:
    """The path of a program of the machine; the test is skipped without it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}: apt-get install --no-install-recommends {package}")
    return found


def run(*command: str | Path, given: Any = None, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program with an object as JSON on its standard input."""
    return subprocess.run(
        command, input=json.dumps(given), cwd=folder, capture_output=True, text=True, check=False, errors="replace"
    )


def mistakes_by(models: str, given: Any) -> str:
    """What the models of `bundle` or `kubeflow` say of an object; "" if nothing is wrong."""
    done = run(checker("python"), Path(__file__).with_name("against_models.py"), models, given=given)
    assert done.stdout or done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def serving(*words: str) -> Iterator[str]:
    """The address of a program of kquota that tells its port on one of its first lines."""
    command = [sys.executable, "-m", "pipeline.cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if found := re.search(r"(?:on port |http://127\.0\.0\.1:)(\d+)", line):
                    yield f"http://127.0.0.1:{found[1]}"
                    return
            pytest.fail("the program has ended")
        finally:
            process.kill()
