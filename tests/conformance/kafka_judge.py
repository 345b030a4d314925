"""Kafka as judge: random sessions are played by Kafka's own quota classes and by the engine.

    python -m tests.conformance.kafka_judge [--sessions 2000] [--seed 0]

Needs a JDK, because only its `java` runs a source file, and the locked jars of the broker. When the two answer
differently, the session is shortened as long as it still shows the difference. It is printed as a line that
`python -m tests.conformance.replay` can play.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pipeline.jvm.jars import broker_classpath
from pipeline.jvm.java import Java, find_jdk
from tests.conformance.random_sessions import Session, draw_session, is_aligned
from tests.conformance.replay import Mismatch, replay

DRIVER: Final = Path(__file__).with_name("KafkaJudge.java")
JVM_OPTIONS: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class KafkaJudge:
    """A JVM with Kafka's quota managers, for any number of sessions. Use it in a `with` block."""

    def __init__(self, java: Java) -> None:
        """Start the JVM.

        Args:
            java: a Java that has a compiler.
        """
        class_path = os.pathsep.join(map(str, broker_classpath()))
        command: list[str | Path] = [java.executable, *JVM_OPTIONS, "-cp", class_path, DRIVER]
        self._jvm = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")

    def answer(self, session: Session) -> Session:
        """The session with Kafka's answer to each request. Every session begins without quotas and samples.

        Raises:
            RuntimeError: the JVM ended; the reason is on its stderr.
        """
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

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._jvm.communicate()  # closes stdin, and then the driver ends


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a run of sessions.

    Attributes:
        sessions: how many were played. The run ends with the first one that shows a difference.
        records: how many requests they had.
        mismatches: requests of the last session that the engine answers differently.
        minimal: that session, shortened, as one line of JSON; None if there is no difference.
    """

    sessions: int
    records: int
    mismatches: list[Mismatch]
    minimal: str | None


def judge(kafka: KafkaJudge, first_seed: int, sessions: int) -> Verdict:
    """Play sessions until one shows a difference."""
    records = 0
    for number in range(sessions):
        answered = kafka.answer(draw_session(first_seed + number))
        count, mismatches = replay(answered)
        records += count
        if mismatches:
            minimal = json.dumps(cut_down(kafka, answered), ensure_ascii=False)
            return Verdict(number + 1, records, mismatches, minimal)
    return Verdict(sessions, records, [], None)


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


def main(arguments: list[str] | None = None) -> int:
    """Play random sessions. Returns 0 if the engine gives all of Kafka's answers, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.kafka_judge", description=main.__doc__)
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first session; each further session has the next seed"
    )
    asked = parser.parse_args(arguments)
    jdk = find_jdk()
    if jdk is None:
        parser.error("needs a JDK of version 17 or newer in JAVA_HOME or on PATH; got none")
    with KafkaJudge(jdk) as kafka:
        verdict = judge(kafka, asked.seed, asked.sessions)
    for mismatch in verdict.mismatches:
        print(mismatch)  # noqa: T201
    if verdict.minimal is not None:
        print(verdict.minimal)  # noqa: T201
    print(f"{verdict.sessions} sessions, {verdict.records} records, {len(verdict.mismatches)} mismatches")  # noqa: T201
    return 1 if verdict.mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
