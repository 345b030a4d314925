"""The image: its Dockerfile judged by hadolint, its scripts run as far as they can be run without a container."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import Counter

from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import spark_jars
from pipeline.jvm.java import find_java
from pipeline.settings.model import MetricsSettings
from pipeline.tables.layout import create_missing
from pipeline.web import metrics_endpoint, new_registry
from tests.deploy.commands import DEPLOY, checker, locked, programs, run, serving
from tests.integration.running_job import running_job, usage
from tests.waiting import PATIENCE_SECONDS, wait_until

IMAGE = DEPLOY / "image"
ROOT = DEPLOY.parent


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = run(checker("hadolint"), IMAGE / "Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")


def test_it_runs_as_a_user_by_number_who_is_not_root() -> None:
    users = re.findall(r"^USER (.*)$", (IMAGE / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert re.fullmatch(r"[1-9]\d+(:[1-9]\d+)?", users[-1])


def test_the_lock_of_the_image_is_part_of_the_lock_of_the_checkout() -> None:
    image, checkout = locked(IMAGE / "requirements.lock"), locked(DEPLOY / "requirements.lock")
    assert {name: hashes for name, hashes in image.items() if checkout.get(name) != hashes} == {}
    assert all(image.values())


def test_the_builder_gets_all_that_the_image_is_made_of() -> None:
    sent = [
        line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line[:1] == "!"
    ]
    named = set(re.findall(r"\bdeploy/[\w./-]+", (IMAGE / "make.sh").read_text("utf-8")))
    assert "deploy/image/entrypoint.sh" in named
    assert [one for one in sorted(named) if not any(one == path or one.startswith(f"{path}/") for path in sent)] == []


@pytest.fixture
def image_with_java(tmp_path: Path) -> Path:
    """The folder that the image holds, made of this checkout's environment."""
    for name in ("entrypoint.sh", "health.py"):
        (tmp_path / name).write_bytes((IMAGE / name).read_bytes())
    (tmp_path / "job.py").write_bytes((IMAGE.parent / "databricks" / "kquota_job.py").read_bytes())
    (tmp_path / "entrypoint.sh").chmod(0o755)
    commands = tmp_path / "venv" / "bin"
    commands.mkdir(parents=True)
    for name, command in (("python", ""), ("kquota", " -m pipeline.cli.main")):
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable}{command} "$@"\n', "utf-8")
        (commands / name).chmod(0o755)
    (tmp_path / "java-home").write_text(f"{find_java().home}\n", "utf-8")
    (tmp_path / "connectors").mkdir()
    for jar in spark_jars():
        (tmp_path / "connectors" / jar.name).symlink_to(jar)
    return tmp_path


@pytest.mark.spark
def test_as_executor_it_is_sparks_executor_which_asks_for_its_driver(image_with_java: Path) -> None:
    names = {
        "SPARK_EXECUTOR_MEMORY": "256m",
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:1",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "one",
        "SPARK_JAVA_OPT_0": "-Dkquota.first=1",
    }
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **names}
    command = [str(image_with_java / "entrypoint.sh"), "executor"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
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


WANTED = "kquota_query_starts_total"


def asked(*arguments: str) -> tuple[int, str]:
    done = run(sys.executable, IMAGE / "health.py", *arguments)
    return done.returncode, done.stderr


def probed_paths(program: str) -> set[str]:
    return {path for one in programs() if one.name == program for _, path in one.probed}


def test_a_dashboard_is_alive_before_there_are_tables_and_ready_when_they_are(tmp_path: Path) -> None:
    assert probed_paths("dashboard") == {"/healthz", "/readyz"}
    with serving("dashboard", "--port", "0", "--tables", str(tmp_path / "tables")) as address:
        assert asked(f"{address}/healthz") == (0, "")
        code, told = asked(f"{address}/readyz")
        assert code == 1
        assert "503" in told
        create_missing(str(tmp_path / "tables"))
        wait_until(lambda: asked(f"{address}/readyz") == (0, ""), "the dashboard to read the tables")


def test_a_job_is_ready_when_its_query_has_started() -> None:
    registry = new_registry("job")
    with metrics_endpoint(MetricsSettings(port=0), registry) as port:
        address = f"http://127.0.0.1:{port}/metrics"
        assert asked(address) == (0, "")
        assert asked(address, WANTED)[0] == 1  # it is missing
        starts = Counter(WANTED.removesuffix("_total"), "As of the job.", registry=registry)
        assert asked(address, WANTED) == (1, f"{address}: {WANTED} is 0.0\n")
        starts.inc()
        assert asked(address, WANTED) == (0, "")
