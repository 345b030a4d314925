"""The gate with its threads, for callers on threads and on event loops."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from operator import attrgetter
from typing import Any

import pytest

from pipeline.errors import PipelineError
from pipeline.gate.gate import Gate, GateTimeout, Passage
from tests.forking import in_a_child
from tests.pipeline.gate.gate_setting import LONG_MS, GateSetting
from tests.waiting import PATIENCE_SECONDS, never


@pytest.fixture
def setting() -> Iterator[GateSetting]:
    made = GateSetting(pool_bytes=100, max_request_bytes=100)
    with made.gate:
        yield made


class Caller:
    """A thread that acquires, and stays in the block until `leave`."""

    def __init__(self, gate: Gate, user: str = "alice", **options: Any) -> None:
        self.passage: Passage | None = None
        self.failure: PipelineError | None = None
        self.entered = threading.Event()
        self.may_leave = threading.Event()
        self._acquire: Callable[[], Any] = lambda: gate.acquire(user, "etl", **options)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        self.may_leave.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with self._acquire() as self.passage:
                self.entered.set()
                self.may_leave.wait(PATIENCE_SECONDS)
        except PipelineError as exc:
            self.failure = exc


def test_a_throttle_ends_on_time_though_no_thread_of_the_gate_lives(setting: GateSetting) -> None:
    setting.gate._reaper.close()
    setting.throttle(for_ms=50)
    caller = Caller(setting.gate)
    setting.wait_for(1)
    setting.throttle(for_ms=100)
    assert never(caller.entered.is_set)
    setting.clock.advance(100)
    assert caller.entered.wait(PATIENCE_SECONDS)
    caller.leave()


def test_an_error_in_the_block_gives_the_bytes_back(setting: GateSetting) -> None:
    setting.throttle()
    failure = ValueError("the work failed")

    def work() -> None:
        with setting.gate.acquire("alice", "etl", request_bytes=10):
            raise failure

    raised: list[ValueError] = []

    def run() -> None:
        try:
            work()
        except ValueError as exc:
            raised.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    setting.wait_for(1)
    setting.release()
    thread.join(PATIENCE_SECONDS)
    assert raised == [failure]
    setting.assert_empty()


def test_a_caller_that_waits_for_memory_leaves_the_queue_at_its_time_out() -> None:
    setting = GateSetting(pool_bytes=100, max_request_bytes=100, when_full="wait")
    with setting.gate:
        setting.throttle()
        first = Caller(setting.gate, request_bytes=100)
        setting.wait_for(1)
        with pytest.raises(GateTimeout), setting.gate.acquire("alice", "etl", request_bytes=1, timeout_ms=10):
            pytest.fail("the block must not run")
        second = Caller(setting.gate, request_bytes=60)
        setting.wait_for(2)
        setting.release()
        assert first.entered.wait(PATIENCE_SECONDS)
        first.leave()
        assert second.entered.wait(PATIENCE_SECONDS)
        second.leave()
        setting.assert_empty()


def test_closing_wakes_all_threads_and_ends_those_of_the_gate() -> None:
    setting = GateSetting()
    setting.gate.start()
    setting.throttle()
    callers = [Caller(setting.gate, request_bytes=10) for _ in range(5)]
    setting.wait_for(5)
    for _ in range(2):
        setting.gate.close()
    assert all(caller.entered.wait(PATIENCE_SECONDS) for caller in callers)
    for caller in callers:
        caller.leave()
    assert setting.gate.state == "closed"
    assert setting.gate.throttle_of("alice", "etl") is None
    with setting.gate.acquire("alice", "etl") as passage:
        assert not passage.was_throttled
    setting.assert_empty()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gate-")]


@pytest.mark.usefixtures("impatient")
def test_a_gate_without_a_broker_is_open_and_says_so() -> None:
    gate = Gate.connect("127.0.0.1:1")
    assert not gate.wait_until_caught_up(timeout_ms=50)
    assert gate.state == "connecting"
    with gate.acquire("alice", "etl") as passage:
        assert not passage.was_throttled
    gate.close(timeout_seconds=0.05)


HELD = ["_waiting_room._lock", "_waiting_room._timer._lock", "_waiting_room._purgatory._lock"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("held", HELD)
def test_callers_in_a_child_wait_and_pass_whatever_a_thread_of_its_parent_held(setting: GateSetting, held: str) -> None:
    setting.throttle(for_ms=500)
    of_the_parent = Caller(setting.gate, request_bytes=40)
    setting.wait_for(1)

    def work() -> int:
        caller = Caller(setting.gate, request_bytes=30)
        setting.wait_for(1)
        used_bytes = setting.occupancy.pool_used_bytes
        setting.clock.advance(500)
        assert caller.entered.wait(PATIENCE_SECONDS)
        caller.leave()
        setting.assert_empty()
        return used_bytes

    with attrgetter(held)(setting.gate):
        assert in_a_child(work) == "30"
    assert not of_the_parent.entered.is_set()
    setting.clock.advance(500)
    of_the_parent.leave()
    setting.assert_empty()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_leaves_the_block_in_which_it_was_made_as_its_parent_does(setting: GateSetting) -> None:
    def release_the_caller() -> None:
        setting.wait_for(1)
        setting.release()

    def work() -> None:
        block.close()
        setting.assert_empty()

    setting.throttle()
    thread = threading.Thread(target=release_the_caller)
    thread.start()
    with ExitStack() as block:
        block.enter_context(setting.gate.acquire("alice", "etl", request_bytes=40))
        thread.join(PATIENCE_SECONDS)
        with setting.gate._waiting_room._timer._lock:
            assert in_a_child(work) == "None"
        assert setting.occupancy.pool_used_bytes == 40
    setting.assert_empty()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so():
            await asyncio.sleep(0.002)


def run(setting: GateSetting, work: Callable[[], Awaitable[None]]) -> None:
    """Run on a loop of its own. Nothing may be left afterwards."""

    async def main() -> None:
        await work()

    asyncio.run(main())
    setting.assert_empty()


def test_a_task_passes_at_the_end_of_its_throttle_though_no_thread_of_the_gate_lives(setting: GateSetting) -> None:
    passed: list[bool] = []

    async def caller() -> None:
        async with setting.gate.acquire_async("alice", "etl", request_bytes=1) as passage:
            passed.append(passage.was_throttled)

    async def work() -> None:
        setting.gate._reaper.close()
        setting.throttle(for_ms=50)
        task = asyncio.create_task(caller())
        await until(lambda: setting.occupancy.waiting == 1)
        setting.throttle(for_ms=100)
        assert await asyncio.to_thread(never, lambda: passed != [])
        setting.clock.advance(100)
        await asyncio.wait_for(task, PATIENCE_SECONDS)

    run(setting, work)
    assert passed == [True]


def test_a_task_of_a_loop_that_was_closed_does_not_stop_the_others(setting: GateSetting) -> None:
    loop, passed = asyncio.new_event_loop(), []
    setting.throttle()
    lost = setting.gate.acquire_async("alice", "etl")
    waiting = loop.create_task(lost.__aenter__())
    loop.run_until_complete(asyncio.sleep(0))
    setting.wait_for(1)
    loop.close()

    async def caller() -> None:
        async with setting.gate.acquire_async("alice", "etl") as passage:
            passed.append(passage.was_throttled)

    async def work() -> None:
        tasks = [asyncio.create_task(caller()) for _ in range(3)]
        await until(lambda: setting.occupancy.waiting == 4)
        await asyncio.to_thread(setting.release)
        await asyncio.gather(*tasks)

    asyncio.run(work())
    assert passed == [True] * 3
    del waiting


@pytest.mark.parametrize("for_ms", [LONG_MS, 2**70])
def test_a_release_wakes_the_waiting_thread(setting: GateSetting, for_ms: int) -> None:
    with setting.gate.acquire("alice", "etl", request_bytes=100) as passage:
        assert passage == Passage(was_throttled=False, waited_ms=0)
        assert setting.occupancy.pool_used_bytes == 0
    setting.throttle(for_ms=for_ms)
    caller = Caller(setting.gate, request_bytes=40)
    setting.wait_for(1)
    assert not caller.entered.is_set()
    setting.release()
    assert caller.entered.wait(PATIENCE_SECONDS)
    assert caller.passage is not None
    assert caller.passage.was_throttled
    assert setting.occupancy.pool_used_bytes == 40
    caller.leave()
    setting.assert_empty()


def test_a_thread_wakes_at_the_end_of_its_throttle_and_not_before_the_renewed_one(setting: GateSetting) -> None:
    setting.throttle(for_ms=500)
    caller = Caller(setting.gate)
    setting.wait_for(1)
    setting.throttle(for_ms=2_000)
    setting.clock.advance(1_999)
    assert never(caller.entered.is_set)
    setting.clock.advance(1)
    assert caller.entered.wait(PATIENCE_SECONDS)
    caller.leave()
    setting.assert_empty()


@pytest.mark.parametrize("timeout_ms", [0, 20])
def test_a_caller_that_waits_too_long_gets_the_remaining_time_and_leaves_nothing(
    setting: GateSetting, timeout_ms: int
) -> None:
    setting.throttle(for_ms=5_500)
    told = f"still throttled after {timeout_ms} ms, for 5500 ms more. .*come back in 6 s"
    waiting = setting.gate.acquire("alice", "etl", request_bytes=10, timeout_ms=timeout_ms)
    with pytest.raises(GateTimeout, match=told) as late, waiting:
        pytest.fail("the block must not run")
    assert (late.value.user, late.value.client_id, late.value.remaining_ms) == ("alice", "etl", 5_500)
    setting.assert_empty()


def test_a_task_that_is_cancelled_or_waits_too_long_leaves_nothing_behind(setting: GateSetting) -> None:
    async def caller(timeout_ms: int | None = None) -> None:
        async with setting.gate.acquire_async("alice", "etl", request_bytes=100, timeout_ms=timeout_ms):
            pytest.fail("the block must not run")

    async def work() -> None:
        setting.throttle()
        with pytest.raises(GateTimeout):
            await caller(timeout_ms=10)
        task = asyncio.create_task(caller())
        await until(lambda: setting.occupancy.waiting == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        setting.assert_empty()

    run(setting, work)


def test_tasks_of_two_loops_wait_at_one_gate_until_it_is_closed(setting: GateSetting) -> None:
    setting.throttle()
    passed: list[str] = []

    def loop_of(name: str) -> None:
        async def caller() -> None:
            async with setting.gate.acquire_async("alice", "etl"):
                passed.append(name)

        asyncio.run(caller())

    threads = [threading.Thread(target=loop_of, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    setting.wait_for(2)
    setting.gate.close()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert sorted(passed) == ["one", "two"]
    setting.assert_empty()
