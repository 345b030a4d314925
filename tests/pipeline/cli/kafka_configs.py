"""The recorded answers of Kafka's own kafka-configs to a table of command lines.

`python -m tests.pipeline.cli.kafka_configs` starts the embedded broker and records `golden/kafka_configs.jsonl` anew.
"""

import base64
import json
import re
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import broker_classpath
from pipeline.jvm.java import find_jdk

HERE: Final = Path(__file__).parent
LINES: Final = HERE / "golden" / "kafka_configs.txt"
GOLDEN: Final = HERE / "golden" / "kafka_configs.jsonl"


def command_lines() -> list[list[str]]:
    """The table: one command line per row. Each runs on the quotas that the earlier ones left."""
    return [shlex.split(line) for line in LINES.read_text().splitlines() if line and line[0] != "#"]


def kafkas_answers(broker: EmbeddedBroker) -> list[dict[str, Any]]:
    """The answers of ConfigCommand, from the broker's jars, to each line. Needs a JDK and a broker without quotas."""
    address = ["--bootstrap-server", broker.bootstrap_servers]
    lines = command_lines()
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


def golden() -> list[dict[str, Any]]:
    """The recorded answers."""
    return [json.loads(line) for line in GOLDEN.read_text().splitlines()]


def _error(stderr: str) -> str:
    """The message of a refusal: of the first exception if there is a stack trace, else the first line."""
    found = re.search(r"^\S*ExecutionException: \S+Exception: (.*)$", stderr, re.MULTILINE)
    return found[1] if found else stderr.partition("\n")[0]


def _record() -> None:
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder) / "broker") as broker:
        answers = kafkas_answers(broker)
    GOLDEN.write_text("".join(json.dumps(answer) + "\n" for answer in answers))


if __name__ == "__main__":
    _record()
