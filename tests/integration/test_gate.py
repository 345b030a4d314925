"""The gate with a real topic and a real transactional publisher: callers wait, and the broker dies."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.demo.broker import EmbeddedBroker
from pipeline.gate.gate import Gate
from pipeline.jvm.jars import fetch
from tests.integration.throttle_job import ThrottleJob
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long]

CLIENTS = 50
CALLERS = 4 * CLIENTS


def was_throttled(gate: Gate, user: str) -> bool:
    with gate.acquire(user, "c", request_bytes=1_000) as passage:
        return passage.was_throttled


def test_nobody_is_lost_with_the_broker_and_the_gate_finds_it_again(tmp_path: Path) -> None:
    fetch()
    with (
        EmbeddedBroker(tmp_path / "broker") as own,
        closing(ThrottleJob(own.bootstrap_servers)) as job,
        Gate.connect(own.bootstrap_servers, topic=job.name) as gate,
        ThreadPoolExecutor(CALLERS) as pool,
    ):
        assert gate.wait_until_caught_up(int(PATIENCE_SECONDS * 1_000))
        job.throttle(*range(CLIENTS), for_ms=20_000)
        wait_until(lambda: len(gate.throttles()) == CLIENTS, "the gate to know all throttles")
        callers = [pool.submit(was_throttled, gate, str(number % CLIENTS)) for number in range(CALLERS)]
        wait_until(lambda: gate.stats().occupancy.waiting == CALLERS, "all callers to wait")
        own.kill()
        assert not any(caller.done() for caller in callers)
        assert all(caller.result(PATIENCE_SECONDS) for caller in callers)
        now = gate.stats().occupancy
        assert (now.purgatory_size, now.delayed_operations, now.waiting, now.pool_used_bytes) == (0, 0, 0, 0)
        wait_until(lambda: gate.state == "stale", "the gate to notice that the broker is away")
        assert not was_throttled(gate, "0")

        own.start()
        wait_until(lambda: gate.state == "following", "the gate to find the broker again")
        job.reopen()
        job.throttle(0)
        wait_until(lambda: gate.throttle_of("0", "c") is not None, "the throttle after the outage")
