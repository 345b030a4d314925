"""The gate for callers on an event loop."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest

from pipeline.gate.gate import GateTimeout
from pipeline.gate.waiting_room import GateDepleted
from tests.pipeline.gate.gate_setting import GateSetting
from tests.waiting import PATIENCE_SECONDS, never


@pytest.fixture
def setting() -> Iterator[GateSetting]:
    made = GateSetting(pool_bytes=100, max_request_bytes=100)
    with made.gate:
        yield made


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


def test_tasks_of_one_client_are_all_woken_by_its_release(setting: GateSetting) -> None:
    passed: list[bool] = []

    async def caller() -> None:
        async with setting.gate.acquire_async("alice", "etl", request_bytes=1) as passage:
            passed.append(passage.was_throttled)

    async def work() -> None:
        setting.throttle()
        tasks = [asyncio.create_task(caller()) for _ in range(50)]
        await until(lambda: setting.occupancy.waiting == 50)
        assert passed == []
        await asyncio.to_thread(setting.release)
        await asyncio.gather(*tasks)

    run(setting, work)
    assert passed == [True] * 50


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


def test_a_task_whose_client_is_not_throttled_passes(setting: GateSetting) -> None:
    async def work() -> None:
        async with setting.gate.acquire_async("alice", "etl") as passage:
            assert not passage.was_throttled

    run(setting, work)


def test_a_cancelled_task_leaves_nothing_behind(setting: GateSetting) -> None:
    async def caller() -> None:
        async with setting.gate.acquire_async("alice", "etl", request_bytes=100):
            pytest.fail("the block must not run")

    async def work() -> None:
        setting.throttle()
        task = asyncio.create_task(caller())
        await until(lambda: setting.occupancy.waiting == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        setting.assert_empty()

    run(setting, work)


def test_a_task_that_waits_too_long_gets_an_error(setting: GateSetting) -> None:
    async def work() -> None:
        setting.throttle()
        with pytest.raises(GateTimeout):
            async with setting.gate.acquire_async("alice", "etl", request_bytes=100, timeout_ms=10):
                pytest.fail("the block must not run")

    run(setting, work)


def test_a_depleted_gate_refuses_a_task(setting: GateSetting) -> None:
    async def work() -> None:
        setting.throttle()

        async def caller() -> None:
            async with setting.gate.acquire_async("alice", "etl", request_bytes=100):
                pass

        task = asyncio.create_task(caller())
        await until(lambda: setting.occupancy.waiting == 1)
        with pytest.raises(GateDepleted):
            async with setting.gate.acquire_async("alice", "etl", request_bytes=1):
                pytest.fail("the block must not run")
        setting.release()
        await task

    run(setting, work)


def test_closing_wakes_tasks(setting: GateSetting) -> None:
    async def work() -> None:
        setting.throttle()

        async def caller() -> None:
            async with setting.gate.acquire_async("alice", "etl"):
                pass

        task = asyncio.create_task(caller())
        await until(lambda: setting.occupancy.waiting == 1)
        await asyncio.to_thread(setting.gate.close)
        await task

    run(setting, work)


def test_tasks_of_two_loops_wait_at_one_gate(setting: GateSetting) -> None:
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
    setting.release()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert sorted(passed) == ["one", "two"]
    setting.assert_empty()


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
