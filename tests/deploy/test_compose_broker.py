"""The broker of the compose file: the image's own set-up program reads its variables, and a real broker starts on them.

Names of hosts, ports and folders alone are others than in the containers.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from pipeline.jvm.jars import broker_classpath
from pipeline.jvm.java import find_java
from pipeline.process import free_ports
from schemas.names import USAGE_TOPIC
from tests.deploy.commands import compose_file, compose_programs, run
from tests.waiting import wait_until

_DATA = "/var/lib/kafka/data"
_JAR_VOLUME = {"/var/lib/kquota": "jar", "/opt/kquota-reporter": "kafka"}  # one volume, mounted in both services
pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.usefixtures("made_reporter")]


class ComposeBroker:
    """What stands here for what the compose file names: `here` translates."""

    def __init__(self, folder: Path) -> None:
        inside, host, controller = free_ports(3)
        self.address = f"127.0.0.1:{host}"
        self._stands_for = {
            "kafka:19092": f"127.0.0.1:{inside}",
            "CONTAINERS://:19092": f"CONTAINERS://127.0.0.1:{inside}",
            "HOST://:9092": f"HOST://{self.address}",
            "HOST://localhost:9092": f"HOST://{self.address}",
            "CONTROLLER://:9093": f"CONTROLLER://127.0.0.1:{controller}",
            "1@kafka:9093": f"1@127.0.0.1:{controller}",
            _DATA: str(folder / "data"),
            **dict.fromkeys(_JAR_VOLUME, str(folder)),
        }
        self.folder = folder

    def here(self, text: str) -> str:
        for name, stands_for in self._stands_for.items():
            text = text.replace(name, stands_for)
        return text

    def java(self, class_path: str = "") -> list[str]:
        jars = [*map(str, broker_classpath()), *([class_path] if class_path else [])]
        return [str(find_java().executable), "-Xmx384m", "-cp", ":".join(jars)]

    def set_up(self, variables: Mapping[str, str]) -> Path:
        """Have the image's program write server.properties and format the folder; gives that file."""
        folders = [self.folder / name for name in ("default", "mounted", "final")]
        for folder in folders:
            folder.mkdir()
        for name in ("log4j2.yaml", "tools-log4j2.yaml"):
            (folders[0] / name).write_text("Configuration:\n  Loggers:\n    Root:\n      level: ERROR\n", "utf-8")
        options = [f"--{folder.name}-configs-dir={folder}" for folder in folders]
        command = [*self.java(), "kafka.docker.KafkaDockerWrapper", "setup", *options]
        done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return folders[-1] / "server.properties"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeBroker]:
    compose = ComposeBroker(tmp_path_factory.mktemp("compose"))
    given = compose_file()["services"]["kafka"]["environment"]
    variables = {key: compose.here(str(value)) for key, value in given.items()}
    assert run_service("jar", compose).returncode == 0
    properties = compose.set_up(variables)
    command = [*compose.java(variables["CLASSPATH"]), "kafka.Kafka", str(properties)]
    with (compose.folder / "broker.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait_until(lambda: _answers(compose, process), "the broker to answer")
            yield compose
        finally:
            process.kill()


def _answers(compose: ComposeBroker, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, (compose.folder / "broker.log").read_text("utf-8")
    done = kquota(compose, "topics", "check")
    return done.returncode != 6


def kquota(compose: ComposeBroker, *words: str) -> "subprocess.CompletedProcess[str]":
    return run(sys.executable, "-m", "pipeline.cli.main", *words, "--bootstrap-server", compose.address)


def run_service(name: str, compose: ComposeBroker) -> "subprocess.CompletedProcess[str]":
    (program,) = (one for one in compose_programs() if one.where == f"compose.yaml {name}")
    words = [compose.here(word) for word in program.words]
    variables = {key: compose.here(value) for key, value in program.variables.items()}
    command = [sys.executable, "-m", "pipeline.cli.main", *words]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)


def test_the_topics_are_made_metering_is_switched_on_and_the_reporter_sends_usage(broker: ComposeBroker) -> None:
    for name in ("topics", "metering"):
        done = run_service(name, broker)
        assert done.returncode == 0, done.stderr
    assert kquota(broker, "topics", "check").returncode == 0
    with closing(KafkaAdminClient(bootstrap_servers=broker.address)) as admin:
        admin.create_topics([NewTopic("orders", 1, 1)])
    with closing(KafkaProducer(bootstrap_servers=broker.address, client_id="etl")) as producer:
        producer.send("orders", b"one").get()
    wait_until(lambda: _is_metered(broker, "etl"), "usage of the client")


def _is_metered(broker: ComposeBroker, client_id: str) -> bool:
    """Whether a usage event of the client is on the topic; what reads it is metered itself, so that never ends."""
    from_start = {"auto_offset_reset": "earliest", "isolation_level": "read_committed", "consumer_timeout_ms": 1_000}
    with closing(KafkaConsumer(USAGE_TOPIC, bootstrap_servers=broker.address, **from_start)) as reader:
        return any(f'"client_id":"{client_id}"'.encode() in message.value.replace(b" ", b"") for message in reader)
