"""The gate with a real topic and a real transactional publisher: many callers wait, and the broker dies."""

import asyncio
import threading
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.demo.broker import EmbeddedBroker
from pipeline.gate.gate import Gate
from pipeline.gate.waiting_room import Occupancy
from pipeline.jvm.jars import fetch
from tests.integration.throttle_job import ThrottleJob
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long]

CLIENTS = 50
THREADS = 200
TASKS = 2_000
REQUEST_BYTES = 1_000
PATIENCE_MS = int(PATIENCE_SECONDS * 1_000)


@dataclass
class Crowd:
    """Callers on threads and as asyncio tasks, the same number for each client. Each is counted when it passes."""

    gate: Gate
    request_bytes: int = REQUEST_BYTES

    def __post_init__(self) -> None:
        self.passed: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._thread, args=(str(n % CLIENTS),)) for n in range(THREADS)]
        self._threads.append(threading.Thread(target=lambda: asyncio.run(self._tasks())))
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
        assert not any(thread.is_alive() for thread in self._threads)

    def _thread(self, user: str) -> None:
        with self.gate.acquire(user, "c", request_bytes=self.request_bytes) as passage:
            self._count(user, passage.was_throttled)

    async def _tasks(self) -> None:
        await asyncio.gather(*(self._task(str(number % CLIENTS)) for number in range(TASKS)))

    async def _task(self, user: str) -> None:
        async with self.gate.acquire_async(user, "c", request_bytes=self.request_bytes) as passage:
            self._count(user, passage.was_throttled)

    def _count(self, user: str, was_throttled: bool) -> None:
        assert was_throttled
        with self._lock:
            self.passed[user] += 1


def wait_for_crowd(gate: Gate) -> None:
    wait_until(lambda: occupancy(gate).waiting == THREADS + TASKS, "all callers to wait")


def wait_for_throttles(gate: Gate) -> None:
    wait_until(lambda: len(gate.throttles()) == CLIENTS, "the gate to know all throttles")


def occupancy(gate: Gate) -> Occupancy:
    return gate.stats().occupancy


def assert_empty(gate: Gate) -> None:
    now = occupancy(gate)
    left = (now.purgatory_size, now.delayed_operations, now.waiting, now.waiting_for_memory, now.pool_used_bytes)
    assert left == (0, 0, 0, 0, 0)


def test_nobody_is_lost_with_the_broker_and_the_gate_finds_it_again(tmp_path: Path) -> None:
    fetch()
    with (
        EmbeddedBroker(tmp_path / "broker") as own,
        closing(ThrottleJob(own.bootstrap_servers)) as job,
        Gate.connect(own.bootstrap_servers, topic=job.name) as gate,
    ):
        assert gate.wait_until_caught_up(PATIENCE_MS)
        job.throttle(*range(CLIENTS), for_ms=20_000)
        wait_for_throttles(gate)
        crowd = Crowd(gate)
        wait_for_crowd(gate)
        own.kill()
        assert not crowd.passed
        crowd.join()
        assert sum(crowd.passed.values()) == THREADS + TASKS
        assert_empty(gate)
        wait_until(lambda: gate.state == "stale", "the gate to notice that the broker is away")
        with gate.acquire("0", "c") as passage:
            assert not passage.was_throttled

        own.start()
        wait_until(lambda: gate.state == "following", "the gate to find the broker again")
        job.reopen()
        job.throttle(0)
        wait_until(lambda: gate.throttle_of("0", "c") is not None, "the throttle after the outage")
