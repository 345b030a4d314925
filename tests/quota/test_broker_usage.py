"""Usage by sensor and broker, and the rates that are made of it."""

from typing import Any

import numpy as np

from quota.broker_levels.entries import as_brokers_take
from quota.broker_levels.usage import NO_SENSOR, BrokerRates, BrokerUsage
from tests.quota.factories import decide, loaded, owed, quota_row, snapshot, table, usage_row

NOW_MS = 1_700_000_000_000
ROWS = (
    quota_row("alice", producer_byte_rate=9.0, request_percentage=5.0),
    quota_row("<default>", producer_byte_rate=7.0),
)
PRODUCER = 0


def of_two_brokers() -> BrokerUsage:
    usage = BrokerUsage(11, 1000)
    usage.load(as_brokers_take(snapshot(ROWS)))
    usage.set_brokers(("1", "2"))
    return usage


def row(user: str, broker_id: str, produced: int | None, at_ms: int = NOW_MS + 500, **columns: Any) -> dict[str, Any]:
    return usage_row(at_ms, user=user, broker_id=broker_id, produced_bytes=produced, **columns)


def sums(usage: BrokerUsage, user: str, at_ms: int = NOW_MS + 999) -> list[float]:
    """What is in the windows of O, per broker."""
    view = usage.view(PRODUCER, np.array([usage.sensor((user, ""))]), at_ms)
    return [round(float(rate), 6) for rate in (view.observed * view.window_ms / 1000)[0]]


def test_a_broker_that_comes_back_has_nothing_and_the_others_keep_what_they_had() -> None:
    usage = of_two_brokers()
    usage.record(table([row("alice", "1", 5), row("alice", "2", 6)]))
    assert usage.set_brokers(["2"]).tolist() == [1]
    assert usage.set_brokers(["3", "2", "1"]).tolist() == [-1, 0, -1]
    assert sums(usage, "alice") == [0.0, 6.0, 0.0]
    usage.record(table([row("alice", "1", 7), row("bob", "3", 8)]))
    assert (sums(usage, "alice"), sums(usage, "bob")) == ([0.0, 6.0, 7.0], [8.0, 0.0, 0.0])


def test_sensors_that_no_window_counts_any_more_are_dropped_and_the_others_renumbered() -> None:
    usage = of_two_brokers()
    usage.record(table([row("alice", "1", 5), row("bob", "1", 6)]))
    usage.record(table([row("carol", "2", 7, NOW_MS + 5_000)]))
    now_ms = NOW_MS + 500 + 60_000 + 1
    kept = np.array([usage.sensor(("bob", ""))])
    assert usage.expire(kept, now_ms)
    assert usage.tags == [("bob", ""), ("carol", "")]
    assert usage.sensor(("alice", "")) == NO_SENSOR
    assert (sums(usage, "bob"), sums(usage, "carol", NOW_MS + 5_999)) == ([6.0, 0.0], [0.0, 7.0])
    assert not usage.expire(kept, now_ms)


def test_the_rate_of_a_cell_is_that_of_the_engine_in_broker_scope() -> None:
    engine = loaded(quota_row(producer_byte_rate=1000), scope="broker", carry_debt=False)
    rates = BrokerRates(PRODUCER, NOW_MS)
    for second, sent in enumerate((7_001, 0, 3_333, 12_345, 6_000)):
        at_ms = NOW_MS + 1_000 * second + 250 * (second % 4)
        decide(engine, at_ms, usage_row(at_ms, produced_bytes=sent))
        rates.record(np.array([0]), at_ms // 1000, np.array([sent]), np.array([at_ms]))
        view = rates.view(np.array([[0]]), at_ms)
        wanted = owed(engine, at_ms)
        assert (view.observed[0, 0], view.window_ms[0, 0]) == (wanted["observed"], wanted["window_ms"])
        assert view.last_ms[0, 0] == at_ms


def test_the_recent_rate_forgets_after_three_seconds() -> None:
    rates = BrokerRates(PRODUCER, NOW_MS)
    rates.record(np.array([0]), NOW_MS // 1000, np.array([6_000]), np.array([NOW_MS]))
    seen = [rates.view(np.array([[0]]), NOW_MS + age_ms).recent[0, 0] for age_ms in (0, 999, 1_000, 2_999, 3_000)]
    assert seen == [3_000.0, 6_000 / 2.999, 3_000.0, 6_000 / 2.999, 0.0]


def test_request_time_is_a_percentage_of_one_thread() -> None:
    rates = BrokerRates(2, NOW_MS)
    rates.record(np.array([0]), NOW_MS // 1000, np.array([1_000_000_000]), np.array([NOW_MS]))
    assert rates.view(np.array([[0]]), NOW_MS).observed[0, 0] == 10.0
