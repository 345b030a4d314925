"""A real broker and a real job whose wall clocks are stepped from outside, as NTP and a resumed machine do it.

Both run with `stepped_clock.c` before their C library. Without a C compiler these tests are skipped.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final, Self

import pytest
from deltalake import DeltaTable
from kafka import KafkaProducer

from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import fetch
from pipeline.tables.address import table_uri
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable, local_audit
from pipeline.tables.reading import read_table
from tests.faults.stepped_clock import COMPILER, SteppedClock, stepped_clock
from tests.integration.running_job import RunningJob, running_job
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.skipif(COMPILER is None, reason="needs a C compiler: apt-get install gcc libc6-dev"),
]

BOUND: Final = 10_000
QUIET: Final = "quiet"
EVERY_SECONDS: Final = 0.1
HELD_WITHIN_MS: Final = 15_000
PATIENCE_SECONDS: Final = 60.0
NUM_SAMPLES: Final = 11


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SteppedClock]:
    with stepped_clock(tmp_path_factory.mktemp("clock")) as clock:
        yield clock


@pytest.fixture(scope="module")
def stepped_broker(clock: SteppedClock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    fetch()
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as own:
        yield own


class Load:
    """Usage of offenders who obey nothing and of a quiet client, dated by the clock, until the end of the block."""

    def __init__(self, job: RunningJob, clock: SteppedClock) -> None:
        self._job, self._clock = job, clock
        self._offenders: list[str] = []
        self._has_ended = Event()
        self._sender = Thread(target=self._send)

    def __enter__(self) -> Self:
        self._sender.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._sender.join()

    def offends(self, user: str) -> None:
        """Let one more client begin to send 50 times its bound."""
        self._offenders.append(user)

    def await_held(self, change: Callable[[], int], newcomer: str) -> int:
        """Make a change, let a newcomer offend, and wait until all offenders are held by what came after the change.

        Args:
            change: Returns when the clocks were set, by the clock.
            newcomer: The user who begins to offend.

        Returns:
            How long it took from the first micro-batch after the change until all were held, milliseconds by the clock.
            How long a killed job needs until that micro-batch depends on the machine.
        """
        last_batch = max(self._batches(), default=-1)
        last_seq = max((record["publish_seq"] for record in self._job.records()), default=-1)
        changed_ms = change()
        held_from_ms = dict[str, int]()
        self.offends(newcomer)

        def are_held() -> bool:
            for user in {*self._offenders} - {*held_from_ms}:
                held_from_ms.update((user, began_ms) for began_ms in self._holds(user, last_seq))
            return len(held_from_ms) == len(self._offenders)

        wait_until(are_held, f"throttles of {self._offenders} that reach past now", PATIENCE_SECONDS)
        first_batch_ms = min(
            at_ms for batch_id, at_ms in self._batches().items() if batch_id > last_batch and at_ms >= changed_ms
        )
        return max(held_from_ms.values()) - first_batch_ms

    def _batches(self) -> dict[int, int]:
        """When each micro-batch was collected, by its id."""
        uri = table_uri(str(self._job.settings.tables.root), "batches")
        if not DeltaTable.is_deltatable(uri):
            return {}
        rows = read_table(uri, ["batch_id", "processed_at_ms"]).to_pylist()
        return {row["batch_id"]: row["processed_at_ms"] for row in rows}

    def _holds(self, user: str, after_seq: int) -> list[int]:
        """When the throttles began that hold a client now, of those published after a record.

        What was written by the clock before a step does not count: it begins in the future, or has ended.
        """
        now_ms = self._clock.now_ms()
        spans = [
            (record["throttled_until_ms"] - record["throttle_time_ms"], record["throttled_until_ms"])
            for record in self._job.records()
            if record["publish_seq"] > after_seq and (record["user"], record["action"]) == (user, "throttle")
        ]
        return [began_ms for began_ms, until_ms in spans if began_ms <= now_ms < until_ms]

    def _send(self) -> None:
        producer: Any = KafkaProducer(bootstrap_servers=self._job.bootstrap_servers)
        while not self._has_ended.wait(EVERY_SECONDS):
            for user, bytes_per_second in [(QUIET, BOUND // 100), *((user, 50 * BOUND) for user in self._offenders)]:
                event = {"event_time_ms": self._clock.now_ms(), "user": user, "client_id": "c"}
                event["produced_bytes"] = round(bytes_per_second * EVERY_SECONDS)
                producer.send(self._job.usage_topic, json.dumps(event).encode(), key=user.encode())
        producer.close()


@pytest.mark.parametrize("seconds", [20, 3_600])
def test_after_any_step_offenders_are_soon_held_and_the_quiet_client_never(
    seconds: int, stepped_broker: EmbeddedBroker, clock: SteppedClock, tmp_path: Path
) -> None:
    with running_job(f"stepped-{seconds}", tmp_path, stepped_broker.bootstrap_servers) as job:
        job.overrides["KQUOTA_SPARK__DRIVER_MEMORY"] = "512m"
        bound = QuotaChange("<default>", "", {"producer_byte_rate": float(BOUND)})
        QuotaTable(job.settings.tables.root).alter([bound], local_audit("stepped clocks"))

        def start() -> int:
            began_ms = clock.now_ms()
            job.start()
            return began_ms

        def step(by_seconds: int) -> int:
            clock.step(by_seconds)
            return clock.now_ms()

        def step_while_killed(by_seconds: int) -> int:
            job.kill()
            clock.step(by_seconds)
            return start()

        took_ms = {}
        with Load(job, clock) as load:
            load.await_held(start, "before")
            for name, by_seconds in (("forward", seconds), ("back", -seconds)):
                took_ms[name] = load.await_held(partial(step, by_seconds), name)
            for name, by_seconds in (("forward, killed", seconds), ("back, killed", -seconds)):
                took_ms[name] = load.await_held(partial(step_while_killed, by_seconds), name)
        job.stop()
        assert max(took_ms.values()) <= HELD_WITHIN_MS, took_ms
        assert {record["user"] for record in job.records()} == {"before", *took_ms}
        replays_agree(job, clock, tmp_path / "candidate.yaml", len(took_ms))


def replays_agree(job: RunningJob, clock: SteppedClock, candidate: Path, steps: int) -> None:
    """`verify` finds every decision again; what-if finds what happened, but for the windows of one ring a step."""
    span = ("--since", str(clock.now_ms() - 7_200_000), "--until", str(clock.now_ms() + 7_200_000))
    verified = job.command("throttles", "verify", *span)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    candidate.write_text(job.command("quotas", "export").stdout, encoding="utf-8")
    replayed = job.command("what-if", "-f", str(candidate), "--from", "usage", "-o", "json", *span)
    assert replayed.returncode == 0, replayed.stderr
    for offender in json.loads(replayed.stdout)[0]["clients"]:
        assert offender["windows_baseline"] == offender["windows_candidate"]
        assert abs(offender["windows_baseline"] - offender["windows_happened"]) <= steps * NUM_SAMPLES, offender
