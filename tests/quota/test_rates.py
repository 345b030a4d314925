"""Token buckets at their limits, and usage on other sample windows.

Rates are compared with Kafka's own (tests/conformance), and with the model (test_engine.py).
"""

import numpy as np
import pytest

from quota.rates import MAX_DEBT_BURSTS_OF_GAP, TokenBuckets, is_on_windows
from tests.quota.factories import decide, loaded, owed, quota_row, snapshot, table, usage_row

AT_MS = 1_700_000_040_000


def test_a_debt_is_never_larger_than_ten_bursts() -> None:
    engine = loaded(quota_row(producer_byte_rate=1000))
    decide(engine, AT_MS, usage_row(AT_MS, produced_bytes=10**9))
    assert owed(engine, AT_MS)["tokens"] == -110_000.0
    engine.load_quotas(snapshot([quota_row(producer_byte_rate=10)], version=2))
    assert owed(engine, AT_MS)["tokens"] == -1100.0


def test_buckets_put_back_owe_what_they_owed() -> None:
    rows = [quota_row(producer_byte_rate=1000), quota_row("<default>", "<default>", request_percentage=5)]
    engine, other = loaded(*rows, scope="broker"), loaded(*rows, scope="broker")
    used = [usage_row(AT_MS, broker_id=broker, produced_bytes=10**5, io_time_ns=10**10) for broker in ("1", "2")]
    decide(engine, AT_MS, *used, usage_row(AT_MS, user="idle", produced_bytes=0))
    stored = engine.buckets()
    assert stored.num_rows == 4
    decide(other, AT_MS, usage_row(AT_MS, broker_id="1", client_id="other", produced_bytes=77))
    other.restore_buckets(stored)
    one, again = (of.evaluate(table(used), AT_MS + 700).select(["tokens", "bound"]) for of in (engine, other))
    assert again.equals(one)
    assert other.buckets().sort_by("broker_id").equals(stored.sort_by("broker_id"))


def test_a_debt_without_a_bound_is_kept_for_the_next_bound() -> None:
    engine = loaded(quota_row(producer_byte_rate=1000))
    decide(engine, AT_MS, usage_row(AT_MS, produced_bytes=11_005))
    engine.load_quotas(snapshot([], version=2))
    decide(engine, AT_MS + 60_000)
    assert engine.buckets()["tokens"].to_pylist() == [-5.0]
    assert (owed(engine, AT_MS + 60_000)["tokens"], owed(engine, AT_MS + 60_000)["owed_ms"]) == (None, 0)


@pytest.mark.parametrize(
    ("tokens", "amount", "left"),
    [
        (110.0, 219.0, -109.0),
        (110.0, 220.0, -110.0),
        (110.0, 221.0, -110.0),
        (-110.0, 1.0, -110.0),
        (-300.0, 5.0, -300.0),
    ],
)
def test_usage_of_a_gap_leads_to_a_debt_of_one_burst_and_lifts_no_larger_one(
    tokens: float, amount: float, left: float
) -> None:
    buckets = TokenBuckets(11, 1000)
    buckets.grow(1)
    one, bound = np.array([0]), np.array([10.0])
    buckets.restore(one, np.array([tokens]), np.array([100_000]))
    buckets.charge(one, np.array([amount]), bound, 100_000, MAX_DEBT_BURSTS_OF_GAP)
    assert buckets.tokens_at(one, bound, 100_000).tolist() == [left]


@pytest.mark.parametrize(
    ("start_ms", "last_ms", "window_ms", "fits"),
    [(0, 0, 500, True), (0, 499, 500, True), (0, 500, 500, False), (500, 500, 1_000, False), (500, 999, 250, False)],
)
def test_a_row_is_on_its_window_if_it_starts_with_it_and_ends_in_it(
    start_ms: int, last_ms: int, window_ms: int, fits: bool
) -> None:
    row = {"sample_start_ms": start_ms, "last_event_ms": last_ms, "user": "a", "client_id": "c"}
    assert is_on_windows(table([row]), window_ms) is fits
