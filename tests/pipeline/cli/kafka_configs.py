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
from typing import Any, Final

from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import broker_classpath
from pipeline.jvm.java import find_jdk

HERE: Final = Path(__file__).parent
LINES: Final = HERE / "golden" / "kafka_configs.txt"
GOLDEN: Final = HERE / "golden" / "kafka_configs.jsonl"


OURS: Final = (("users",), ("clients",), ("users", "clients"))
"""The kinds of entities that kquota has quotas for."""


def command_lines() -> list[list[str]]:
    """The table: one command line per row. Each runs on the quotas that the earlier ones left."""
    return [shlex.split(line) for line in LINES.read_text().splitlines() if line and line[0] != "#"]


def kafkas_answers(broker: EmbeddedBroker, lines: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """The answers of ConfigCommand, from the broker's jars, to each command line, run in turn. Needs a JDK."""
    address = ["--bootstrap-server", broker.bootstrap_servers]
    classpath = ":".join(map(str, broker_classpath()))
    jdk = find_jdk()
    assert jdk is not None
    ran = subprocess.run(
        [jdk.executable, "-XX:TieredStopAtLevel=1", "-cp", classpath, HERE / "ConfigCommands.java"],
        input="".join("\t".join([*address, *line]) + "\n" for line in lines),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    answers = []
    for line, answer in zip(lines, ran.stdout.splitlines(), strict=True):
        code, out, err = answer.split("\t")
        stdout, stderr = (base64.b64decode(text).decode() for text in (out, err))
        answers.append(
            {"line": shlex.join(line), "exit_code": int(code), "stdout": stdout.splitlines(), "error": _error(stderr)}
        )
    return answers


def described_by_kafka(broker: EmbeddedBroker, *kinds: Sequence[str]) -> list[str]:
    """What `kafka-configs --describe` prints for all entities of these kinds, sorted.

    Args:
        broker: It is asked.
        kinds: Each is the types of an entity: `("users", "clients")` are the pairs.
    """
    lines = [["--describe", *(word for name in kind for word in ("--entity-type", name))] for kind in kinds]
    answers = kafkas_answers(broker, lines)
    assert {answer["exit_code"] for answer in answers} == {0}, answers
    return sorted(configs(line) for answer in answers for line in answer["stdout"])


def configs(line: str) -> str:
    """A line of `--describe`; Kafka prints the configs of an entity in the order of a hash table."""
    entity, _, values = line.partition(" are ")
    return f"{entity} are {', '.join(sorted(values.split(', ')))}"


def golden() -> list[dict[str, Any]]:
    """The recorded answers."""
    return [json.loads(line) for line in GOLDEN.read_text().splitlines()]


def _error(stderr: str) -> str:
    """The message of a refusal: of the first exception if there is a stack trace, else the first line."""
    found = re.search(r"^\S*ExecutionException: \S+Exception: (.*)$", stderr, re.MULTILINE)
    return found[1] if found else stderr.partition("\n")[0]


def _record() -> None:
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder) / "broker") as broker:
        answers = kafkas_answers(broker, command_lines())
    GOLDEN.write_text("".join(json.dumps(answer) + "\n" for answer in answers))


if __name__ == "__main__":
    _record()
