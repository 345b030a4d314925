"""The gate with its threads, for callers on threads and on event loops."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from operator import attrgetter
from typing import Any

import pytest

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
    """A thread, or a task on a loop of its own, that acquires, and stays in the block until `leave`."""

    def __init__(self, gate: Gate, *, is_task: bool = False, **options: Any) -> None:
        self.passage: Passage | None = None
        self.failure: Exception | None = None
        self.entered = threading.Event()
        self._may_leave = threading.Event()
        self._error: Exception | None = None
        self._acquire: Any = partial(gate.acquire_async if is_task else gate.acquire, "alice", "etl", **options)
        self._thread = threading.Thread(target=self._run_loop if is_task else self._run, daemon=True)
        self._thread.start()

    def leave(self, error: Exception | None = None) -> None:
        """Let it leave the block, with an error, and wait for its end; as it is if it was not let in."""
        self._error = error
        self._may_leave.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with self._acquire() as self.passage:
                self._work()
        except Exception as exc:
            self.failure = exc

    def _run_loop(self) -> None:
        asyncio.run(self._run_task())

    async def _run_task(self) -> None:
        try:
            async with self._acquire() as self.passage:
                await asyncio.to_thread(self._work)
        except Exception as exc:
            self.failure = exc

    def _work(self) -> None:
        self.entered.set()
        self._may_leave.wait(PATIENCE_SECONDS)
        if self._error is not None:
            raise self._error


NewCaller = Callable[..., Caller]


@pytest.fixture(params=["thread", "task"])
def new_caller(request: pytest.FixtureRequest) -> NewCaller:
    return partial(Caller, is_task=request.param == "task")


@pytest.mark.parametrize("for_ms", [LONG_MS, 2**70])
def test_a_release_wakes_who_waits(setting: GateSetting, for_ms: int, new_caller: NewCaller) -> None:
    free = new_caller(setting.gate, request_bytes=100)
    assert free.entered.wait(PATIENCE_SECONDS)
    assert free.passage == Passage(was_throttled=False, waited_ms=0)
    assert setting.occupancy.pool_used_bytes == 0
    free.leave()
    setting.throttle(for_ms=for_ms)
    caller = new_caller(setting.gate, request_bytes=40)
    setting.wait_for(1)
    assert not caller.entered.is_set()
    setting.release()
    assert caller.entered.wait(PATIENCE_SECONDS)
    assert caller.passage == Passage(was_throttled=True, waited_ms=0)
    assert setting.occupancy.pool_used_bytes == 40
    failure = ValueError("the work failed")
    caller.leave(failure)
    assert caller.failure is failure
    setting.assert_empty()


def test_a_throttle_ends_on_time_if_no_thread_of_the_gate_lives(setting: GateSetting, new_caller: NewCaller) -> None:
    setting.gate._reaper.close()
    setting.throttle(for_ms=50)
    caller = new_caller(setting.gate)
    setting.wait_for(1)
    setting.throttle(for_ms=100)
    assert never(caller.entered.is_set)
    setting.clock.advance(100)
    assert caller.entered.wait(PATIENCE_SECONDS)
    caller.leave()


def test_the_gate_wakes_who_waits_at_the_end_of_the_throttle(setting: GateSetting, new_caller: NewCaller) -> None:
    setting.throttle(for_ms=LONG_MS)
    caller = new_caller(setting.gate)
    setting.wait_for(1)
    setting.clock.advance(LONG_MS - 1)
    assert never(caller.entered.is_set)
    setting.clock.advance(1)
    assert caller.entered.wait(PATIENCE_SECONDS)
    caller.leave()
    setting.assert_empty()


@pytest.mark.parametrize("timeout_ms", [0, 20])
def test_a_caller_that_waits_too_long_gets_the_remaining_time_and_leaves_nothing(
    setting: GateSetting, timeout_ms: int, new_caller: NewCaller
) -> None:
    setting.throttle(for_ms=5_500)
    late = new_caller(setting.gate, request_bytes=10, timeout_ms=timeout_ms)
    late.leave()
    assert isinstance(late.failure, GateTimeout)
    assert not late.entered.is_set()
    assert (late.failure.user, late.failure.client_id, late.failure.remaining_ms) == ("alice", "etl", 5_500)
    assert "come back in 6 s" in late.failure.fix
    setting.assert_empty()


def test_closing_wakes_all_and_ends_the_threads_of_the_gate(setting: GateSetting) -> None:
    setting.throttle()
    callers = [Caller(setting.gate, is_task=number < 2, request_bytes=10) for number in range(5)]
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
    def work() -> None:
        block.close()
        setting.assert_empty()

    def release_the_caller() -> None:
        setting.wait_for(1)
        setting.release()

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


async def until_one_waits(setting: GateSetting) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while setting.occupancy.waiting != 1:
            await asyncio.sleep(0.002)


def test_a_task_that_is_cancelled_leaves_nothing_behind(setting: GateSetting) -> None:
    async def work() -> None:
        setting.throttle()
        waiting = setting.gate.acquire_async("alice", "etl", request_bytes=100)
        task = asyncio.ensure_future(waiting.__aenter__())
        await until_one_waits(setting)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())
    setting.assert_empty()


def test_a_task_of_a_loop_that_was_closed_does_not_stop_the_others(setting: GateSetting) -> None:
    loop = asyncio.new_event_loop()
    setting.throttle()
    waiting = loop.create_task(setting.gate.acquire_async("alice", "etl").__aenter__())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    callers = [Caller(setting.gate, is_task=True) for _ in range(3)]
    setting.wait_for(4)
    setting.release()
    assert all(caller.entered.wait(PATIENCE_SECONDS) for caller in callers)
    for caller in callers:
        caller.leave()
    del waiting
