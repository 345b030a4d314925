"""The image: its Dockerfile judged by hadolint, its scripts run as far as they can be run without a container."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import spark_jars
from pipeline.jvm.java import find_java
from tests.deploy.checkers import checker, run
from tests.deploy.commands import DEPLOY
from tests.integration.running_job import running_job, usage
from tests.waiting import PATIENCE_SECONDS

IMAGE = DEPLOY / "image"
ROOT = DEPLOY.parent
SCRIPTS = sorted(IMAGE.glob("*.sh"))


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = run(checker("hadolint"), IMAGE / "Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("script", [*SCRIPTS, DEPLOY / "compose" / "secrets.sh"], ids=lambda path: path.name)
def test_a_script_is_one_that_its_shell_can_read(script: Path) -> None:
    shell = script.read_text("utf-8").splitlines()[0].removeprefix("#!")
    assert run(shell, "-n", script).stderr == ""
    assert os.access(script, os.X_OK)


def test_the_image_does_not_run_as_root() -> None:
    users = re.findall(r"^USER (.+)$", (IMAGE / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert users == ["10001:10001"]
    assert "--uid 10001" in (IMAGE / "make-user.sh").read_text("utf-8")


def locked(path: Path) -> dict[str, tuple[str, ...]]:
    """Name and version of each package, and its hashes."""
    entries = path.read_text("utf-8").replace("\\\n", " ").splitlines()
    return {entry.split()[0]: tuple(re.findall(r"sha256:\w+", entry)) for entry in entries if "==" in entry}


def test_the_lock_of_the_image_is_part_of_the_lock_of_the_checkout() -> None:
    image, checkout = locked(IMAGE / "requirements.lock"), locked(DEPLOY / "requirements.lock")
    assert {name: hashes for name, hashes in image.items() if checkout.get(name) != hashes} == {}
    assert all(image.values())


def test_the_lock_of_the_image_has_all_that_the_programs_need_and_no_test_tools() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = [*told["dependencies"], *(name for extra in told["optional-dependencies"].values() for name in extra)]
    names = {entry.partition("==")[0] for entry in locked(IMAGE / "requirements.lock")}
    # An extra may be made of others of the project itself.
    assert {_name(one) for one in needed} - {told["name"]} <= names
    assert not names & {"pytest", "playwright", "ruff", "mypy"}


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=!~ ;]", requirement)[0].lower().replace("_", "-")


def test_what_is_sent_to_the_builder_is_enough_to_build_the_wheel(tmp_path: Path) -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    context = tmp_path / "context"
    for name in (line.removeprefix("!") for line in ignored if line.startswith("!")):
        source, target = ROOT / name, context / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    done = subprocess.run(command, cwd=context, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The folder that the image holds, made of this checkout's environment."""
    for name in ("entrypoint.sh", "health.py", "job.py"):
        (tmp_path / name).write_bytes((IMAGE / name).read_bytes())
    (tmp_path / "entrypoint.sh").chmod(0o755)
    commands = tmp_path / "venv" / "bin"
    commands.mkdir(parents=True)
    for name, command in (("python", ""), ("kquota", " -m pipeline.cli.main")):
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable}{command} "$@"\n', "utf-8")
        (commands / name).chmod(0o755)
    return tmp_path


def entered(image: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [image / "entrypoint.sh", *arguments], env=environment, capture_output=True, text=True, check=False
    )


def test_the_entry_point_is_the_command_line(image: Path) -> None:
    assert entered(image, "--version").stdout.startswith("kquota ")
    assert entered(image, "gate", "--listen", "nonsense").returncode == 2


@pytest.fixture
def image_with_java(image: Path) -> Path:
    (image / "java-home").write_text(f"{find_java().home}\n", "utf-8")
    (image / "connectors").mkdir()
    for jar in spark_jars():
        (image / "connectors" / jar.name).symlink_to(jar)
    return image


@pytest.mark.spark
def test_as_driver_it_is_spark_submit_with_the_jars_and_runs_the_command_line(image_with_java: Path) -> None:
    (image_with_java / "spark.properties").write_text("spark.master local[1]\n", "utf-8")
    arguments = ["--properties-file", str(image_with_java / "spark.properties"), "--verbose"]
    arguments += ["--class", "org.apache.spark.deploy.PythonRunner", f"local://{image_with_java}/job.py"]
    done = entered(image_with_java, "driver", *arguments, "--version", SPARK_DRIVER_BIND_ADDRESS="127.0.0.1")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^kquota \d", done.stdout, re.MULTILINE)
    assert re.search(rf"spark\.driver\.extraClassPath\W+{image_with_java}/connectors/\*", done.stdout + done.stderr)


@pytest.mark.spark
def test_as_executor_it_is_sparks_executor_which_asks_for_its_driver(image_with_java: Path) -> None:
    done = entered(
        image_with_java,
        "executor",
        SPARK_EXECUTOR_MEMORY="256m",
        SPARK_DRIVER_URL="spark://CoarseGrainedScheduler@127.0.0.1:1",
        SPARK_EXECUTOR_ID="1",
        SPARK_EXECUTOR_CORES="1",
        SPARK_APPLICATION_ID="app",
        SPARK_EXECUTOR_POD_IP="127.0.0.1",
        SPARK_RESOURCE_PROFILE_ID="0",
        SPARK_EXECUTOR_POD_NAME="one",
        SPARK_JAVA_OPT_0="-Dkquota.first=1",
    )
    assert done.returncode != 0
    assert "KubernetesExecutorBackend" in done.stderr
    assert "127.0.0.1:1" in done.stderr


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.long
def test_the_driver_of_a_pod_runs_on_a_shared_volume_and_refuses_a_disk_of_the_node(
    image_with_java: Path, tmp_path_factory: pytest.TempPathFactory, broker: EmbeddedBroker
) -> None:
    """What a pod is started with in deploy mode cluster, with executors in the driver, as there is no Kubernetes."""
    properties = image_with_java / "spark.properties"
    properties.write_text(
        "spark.master local[2]\nspark.submit.deployMode cluster\nspark.kubernetes.submitInDriver true\n"
        "spark.driver.host 127.0.0.1\n",
        "utf-8",
    )
    program = [str(image_with_java / "entrypoint.sh"), "driver", "--properties-file", str(properties)]
    program += ["--class", "org.apache.spark.deploy.PythonRunner", f"local://{image_with_java}/job.py"]
    volume = tmp_path_factory.mktemp("volume")
    with running_job("pod", volume, broker.bootstrap_servers) as job:
        job.program, job.overrides = program, {"PYTHONPATH": str(ROOT)}
        job.start(wait=False)
        assert "shared_folders" in job.wait_for_line("is on one node's disk, and the cluster chooses the driver's node")
        assert job.process is not None
        assert job.process.wait(PATIENCE_SECONDS) == 2
        job.overrides["KQUOTA_SPARK__SHARED_FOLDERS"] = json.dumps([str(volume)])
        made = job.command("quotas", "alter", "--user", "alice", "--add-config", "producer_byte_rate=1000")
        assert made.returncode == 0, made.stderr
        job.start()
        job.send(usage("alice", 200_000))
        assert job.wait_for_record(user="alice", action="throttle")["bound"] == 1_000.0
        assert [line for line in job.log if " INFO SparkContext" in line] == []
