"""The recorded answers of Kafka's own kafka-configs to a table of command lines.

`python -m tests.pipeline.cli.kafka_configs` starts the embedded broker and records `golden/kafka_configs.jsonl` anew.
"""

import base64
import json
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import broker_classpath
from pipeline.jvm.java import Java, find_jdk
from tests.compatibility.kafka_jars import tools_jars

HERE: Final = Path(__file__).parent
LINES: Final = HERE / "golden" / "kafka_configs.txt"
GOLDEN: Final = HERE / "golden" / "kafka_configs.jsonl"


OURS: Final = (("users",), ("clients",), ("users", "clients"))
"""The kinds of entities that kquota has quotas for."""


def command_lines() -> list[list[str]]:
    """The table: one command line per row. Each runs on the quotas that the earlier ones left."""
    return [shlex.split(line) for line in LINES.read_text().splitlines() if line and line[0] != "#"]


class KafkaConfigs:
    """ConfigCommand of the broker's release, in one JVM for all command lines. Use it in a `with` block."""

    def __init__(self, jdk: Java) -> None:
        classpath = ":".join(map(str, (*broker_classpath(), *tools_jars())))
        program = str(HERE / "ConfigCommands.java")
        command = [str(jdk.executable), "-XX:TieredStopAtLevel=1", "-cp", classpath, program]
        self._jvm = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._jvm.communicate()  # closes stdin, and then the program ends

    def answer(self, broker: EmbeddedBroker, line: Sequence[str]) -> dict[str, Any]:
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        self._jvm.stdin.write("\t".join(["--bootstrap-server", broker.bootstrap_servers, *line]) + "\n")
        self._jvm.stdin.flush()
        code, out, err = self._jvm.stdout.readline().split("\t")
        stdout, stderr = (base64.b64decode(text).decode() for text in (out, err))
        printed = {"exit_code": int(code), "stdout": stdout.splitlines(), "error": _error(stderr)}
        return {"line": shlex.join(line), **printed}

    def answers(self, broker: EmbeddedBroker, lines: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        return [self.answer(broker, line) for line in lines]

    def described(self, broker: EmbeddedBroker, *kinds: Sequence[str]) -> list[str]:
        """What `--describe` prints for all entities of these kinds, sorted; `("users", "clients")` are the pairs."""
        lines = [["--describe", *(word for name in kind for word in ("--entity-type", name))] for kind in kinds]
        answers = self.answers(broker, lines)
        assert {answer["exit_code"] for answer in answers} == {0}, answers
        return sorted(configs(line) for answer in answers for line in answer["stdout"])


def configs(line: str) -> str:
    """A line of `--describe`; Kafka prints the configs of an entity in the order of a hash table."""
    entity, _, values = line.partition(" are ")
    return f"{entity} are {', '.join(sorted(values.split(', ')))}"


def golden() -> list[dict[str, Any]]:
    return [json.loads(line) for line in GOLDEN.read_text().splitlines()]


def _error(stderr: str) -> str:
    """The message of a refusal: of the first exception if there is a stack trace, else the first line."""
    found = re.search(r"^\S*ExecutionException: \S+Exception: (.*)$", stderr, re.MULTILINE)
    return found[1] if found else stderr.partition("\n")[0]


def _record() -> None:
    jdk = find_jdk()
    assert jdk is not None
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedBroker(Path(folder) / "broker") as broker,
        KafkaConfigs(jdk) as kafka_configs,
    ):
        answers = kafka_configs.answers(broker, command_lines())
    GOLDEN.write_text("".join(json.dumps(answer) + "\n" for answer in answers))


if __name__ == "__main__":
    _record()
