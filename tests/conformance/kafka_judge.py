"""Kafka as judge: random sessions are played by Kafka's own quota classes and by the engine.

    python -m tests.conformance.kafka_judge [--sessions 2000] [--seed 0]

Needs a JDK, because only its `java` runs a source file, and the locked jars of the broker. When the two answer
differently, the session is shortened as long as it still shows the difference. It is printed as a line that
`python -m bench conformance` can play.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from bench.conformance import replay
from pipeline.jvm.jars import broker_classpath
from pipeline.jvm.java import Java, find_jdk
from tests.conformance.random_sessions import Session, draw_session, is_aligned

DRIVER: Final = Path(__file__).with_name("KafkaJudge.java")
JVM_OPTIONS: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class KafkaJudge:
    """A JVM with Kafka's quota managers, for any number of sessions, in a `with` block; `java` has a compiler.

    * `jars`: of another release than that of the locked broker.
    """

    def __init__(self, java: Java, jars: Sequence[Path] = ()) -> None:
        class_path = os.pathsep.join(map(str, jars or broker_classpath()))
        command: list[str | Path] = [java.executable, *JVM_OPTIONS, "-cp", class_path, DRIVER]
        self._jvm = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")

    def answer(self, session: Session) -> Session:
        """The session with Kafka's answer to each request. Every session begins without quotas and samples."""
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        self._jvm.stdin.write(json.dumps(session) + "\n")
        self._jvm.stdin.flush()
        line = self._jvm.stdout.readline()
        if not line:
            msg = f"{DRIVER.name} ended in session {session['seed']} with exit code {self._jvm.wait()}"
            raise RuntimeError(msg)
        answered: dict[str, Any] = json.loads(line)
        return answered

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._jvm.communicate()  # closes stdin, and then the driver ends


def judge(kafka: KafkaJudge, first_seed: int, sessions: int) -> tuple[int, list[str], str | None]:
    """Play sessions until one shows a difference.

    Returns:
        How many requests they had, those that the engine answers differently, and the session of these, shortened, as
        one line of JSON; None without a difference.
    """
    records = 0
    for number in range(sessions):
        answered = kafka.answer(draw_session(first_seed + number))
        count, mismatches = replay(answered)
        records += count
        if mismatches:
            return records, mismatches, json.dumps(cut_down(kafka, answered), ensure_ascii=False)
    return records, [], None


def cut_down(kafka: KafkaJudge, answered: Session) -> Session:
    """A session with fewer steps that still shows a difference. Removes halves first, then ever smaller parts."""
    size = len(answered["steps"])
    while size:
        start = 0
        while start < len(answered["steps"]):
            steps = [*answered["steps"][:start], *answered["steps"][start + size :]]
            candidate = kafka.answer({**answered, "steps": steps})
            if is_aligned(candidate) and replay(candidate)[1]:
                answered = candidate
            else:
                start += size
        size //= 2
    return answered


def main() -> int:
    """Play random sessions. Returns 0 if the engine gives all of Kafka's answers, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.kafka_judge", description=main.__doc__)
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the first session; the next one has the next seed")
    asked = parser.parse_args()
    jdk = find_jdk()
    if jdk is None:
        parser.error("needs a JDK of version 17 or newer in JAVA_HOME or on PATH; got none")
    with KafkaJudge(jdk) as kafka:
        records, mismatches, minimal = judge(kafka, asked.seed, asked.sessions)
    lines = [*mismatches, *([minimal] if minimal else [])]
    print(*lines, f"{asked.sessions} sessions, {records} records, {len(mismatches)} mismatches", sep="\n")  # noqa: T201
    return int(bool(mismatches))


if __name__ == "__main__":
    sys.exit(main())
