"""The meter from a log to the usage topic, and over restarts."""

import tracemalloc
from pathlib import Path

import pytest

from pipeline.errors import Conflict
from pipeline.meter.log_follower import READ_BYTES, LogFollower
from pipeline.meter.request_log import OwnTraffic, RequestLogParser
from pipeline.meter.request_meter import KEEP_EVERY_MS, MARK_EVERY_MS, POOL_BYTES, RequestMeter
from pipeline.meter.usage_topic import UsagePublisher
from tests.fakes.clock import ManualClock
from tests.fakes.usage_topic import Failure, MemoryUsageTopic, UsageBroker

LINE = (
    '[2026-11-21 07:33:33,391] DEBUG Completed request:{{"isForwarded":false,"requestHeader":{{"requestApiVersion":1,'
    '"clientId":"c{0}","requestApiKeyName":"METADATA"}},"request":{{}},"response":{{}},"localTimeMs":1.0,'
    '"responseQueueTimeMs":0.0,"sendTimeMs":0.0,"principal":"User:alice","listener":"{1}"}}'
    " (kafka.request.logger)\n"
)


class Run:
    """One life of a meter, on a clock moved by hand."""

    def __init__(self, log: Path, broker: UsageBroker, pool_bytes: int = POOL_BYTES) -> None:
        self.clock = ManualClock(0)
        self.topic = MemoryUsageTopic(broker)
        publisher = UsagePublisher("1", self.topic, "topic")
        self.follower = LogFollower(log, "beginning", publisher.take_over())
        self.parser = RequestLogParser(
            "1", OwnTraffic(listeners=frozenset({"OWN"}), principals=frozenset({"User:alice"}))
        )
        self.meter = RequestMeter(self.follower, self.parser, publisher, self.clock, self._wait, pool_bytes)

    def _wait(self, seconds: float) -> None:
        self.clock.advance(max(1, round(seconds * 1000)))

    def steps(self, count: int = 3) -> None:
        for _ in range(count):
            self.meter.step()
            self.clock.advance(100)

    def stop(self) -> bool:
        return self.meter.run(lambda: True)

    def die(self) -> None:
        self.follower.close()


def append(log: Path, *numbers: int, listener: str = "SASL") -> None:
    with log.open("a", encoding="utf-8") as file:
        file.writelines(LINE.format(number, listener) for number in numbers)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "kafka-request.log"


@pytest.fixture
def topic() -> UsageBroker:
    return UsageBroker()


def test_a_restart_after_a_clean_stop_repeats_nothing_and_misses_nothing(log: Path, topic: UsageBroker) -> None:
    append(log, 1, 2)
    first = Run(log, topic)
    first.steps()
    assert first.stop()
    append(log, 3)

    second = Run(log, topic)
    second.steps()
    second.stop()

    assert topic.client_ids() == ["c1", "c2", "c3"]


@pytest.mark.parametrize("steps", range(8))
def test_a_restart_after_a_kill_repeats_nothing_and_misses_nothing(log: Path, topic: UsageBroker, steps: int) -> None:
    append(log, 1)
    first = Run(log, topic)
    first.steps(3)
    append(log, 2, 3)
    first.steps(steps)
    first.die()
    append(log, 4)

    second = Run(log, topic)
    second.steps()
    second.stop()

    assert topic.client_ids() == ["c1", "c2", "c3", "c4"]


@pytest.mark.parametrize("failure", ["lost", "late", "too old"])
def test_a_transaction_that_fails_is_settled_and_what_was_logged_meanwhile_follows(
    log: Path, topic: UsageBroker, failure: Failure
) -> None:
    append(log, 1)
    run = Run(log, topic)
    run.topic.fail_next = failure
    run.steps(2)
    append(log, 2)
    run.steps(10)

    assert topic.client_ids() == ["c1", "c2"]
    run.die()


def test_a_start_stores_its_place_before_anything_is_logged(log: Path, topic: UsageBroker) -> None:
    begun: list[int] = []
    first = Run(log, topic)
    first.meter.run(lambda: True, lambda: begun.append(topic.transactions))
    append(log, 1)

    second = Run(log, topic)
    second.steps()

    assert (begun, topic.client_ids()) == ([1], ["c1"])
    second.die()


def test_a_stop_sends_the_events_that_are_still_collected(log: Path, topic: UsageBroker) -> None:
    append(log, 1)
    run = Run(log, topic)
    run.meter.step()
    assert topic.client_ids() == []

    assert run.stop()

    assert topic.client_ids() == ["c1"]


def test_a_stop_gives_up_on_a_topic_that_stays_away_and_says_so(log: Path, topic: UsageBroker) -> None:
    append(log, 1)
    run = Run(log, topic)
    run.steps(1)
    topic.is_away = True

    assert not run.stop()
    assert run.meter.unstored_events == 1


def test_a_meter_that_is_fenced_ends(log: Path, topic: UsageBroker) -> None:
    append(log, 1)
    first = Run(log, topic)
    first.steps(3)
    second = Run(log, topic)
    append(log, 2)

    with pytest.raises(Conflict):
        first.steps(20)
    second.steps(3)

    assert topic.client_ids() == ["c1", "c2"]
    second.die()
    first.die()


def test_events_wait_for_others_and_no_longer_than_the_linger_time(log: Path, topic: UsageBroker) -> None:
    run = Run(log, topic)
    append(log, 1)
    run.meter.step()
    run.clock.advance(99)
    append(log, 2)
    run.meter.step()
    assert topic.transactions == 0

    run.clock.advance(1)
    run.meter.step()

    assert (topic.transactions, topic.client_ids()) == (1, ["c1", "c2"])
    run.die()


def test_lines_that_make_no_event_move_the_place_now_and_then(log: Path, topic: UsageBroker) -> None:
    run = Run(log, topic)
    for _ in range(30):
        append(log, 1, listener="OWN")
        run.steps(MARK_EVERY_MS // 1_000)

    assert topic.transactions == 3 - 1  # the clock begins with the first line
    run.die()


def test_the_place_is_stored_again_before_the_cluster_forgets_it(log: Path, topic: UsageBroker) -> None:
    append(log, 1)
    run = Run(log, topic)
    run.steps()
    before = topic.transactions
    run.clock.advance(KEEP_EVERY_MS)
    run.steps()

    assert topic.transactions == before + 1
    assert topic.client_ids() == ["c1"]
    run.die()


def test_a_log_far_ahead_of_a_topic_that_is_away_is_not_read_into_memory(log: Path, topic: UsageBroker) -> None:
    pool_bytes, lines = 1024 * 1024, 60_000
    append(log, *range(lines))
    assert log.stat().st_size > 15 * pool_bytes
    run = Run(log, topic, pool_bytes)
    topic.is_away = True
    tracemalloc.start()
    try:
        run.steps(200)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert run.follower.place.offset_bytes <= pool_bytes + READ_BYTES
    assert run.meter.held_bytes <= pool_bytes + READ_BYTES
    assert held < 4 * pool_bytes
    assert peak < 6 * pool_bytes

    topic.is_away = False
    run.steps(200)
    assert run.stop()
    assert topic.client_ids() == [f"c{number}" for number in range(lines)]


def test_what_fills_the_pool_is_stored_at_once(log: Path, topic: UsageBroker) -> None:
    append(log, *range(3_000))
    run = Run(log, topic, pool_bytes=2 * READ_BYTES)
    assert log.stat().st_size > 2 * READ_BYTES

    while not topic.transactions:
        assert run.meter.held_bytes < 2 * READ_BYTES
        assert run.meter.step(), "no time has passed"

    assert (run.meter.held_bytes, run.meter.unstored_events) == (0, 0)
    assert len(topic.client_ids()) > 1_000
    run.die()


def test_a_malformed_line_is_skipped_with_a_warning(
    log: Path, topic: UsageBroker, caplog: pytest.LogCaptureFixture
) -> None:
    append(log, 1)
    with log.open("a", encoding="utf-8") as file:
        file.write("[2026-11-21 07:33:33,391] DEBUG Completed request:{broken\n")
    append(log, 2)
    run = Run(log, topic)

    run.steps()
    run.stop()

    assert topic.client_ids() == ["c1", "c2"]
    assert "1 malformed line of" in caplog.text
