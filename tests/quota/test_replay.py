from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from quota.engine import QuotaEngine
from quota.replay import StoredBatch, batches_of, replay
from quota.snapshot import QuotaSnapshot
from tests.quota.factories import quota_row, table, usage_row

T0_MS = 1_700_000_000_000


def stored(
    batch_id: int, at_ms: int, rows: int = 1, query_id: str = "q", quota_version: int = 1
) -> list[dict[str, Any]]:
    key = {"query_id": query_id, "batch_id": batch_id, "evaluated_at_ms": at_ms, "quota_version": quota_version}
    key["time_epoch"] = 0
    return [{**key, "user": f"u{row}"} for row in range(rows)]


@given(st.data())
def test_batches_come_back_whole_and_in_the_order_they_were_decided(data: st.DataObject) -> None:
    steps_ms = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=60))
    batches, at_ms = [], T0_MS
    for batch_id, step_ms in enumerate(steps_ms):
        at_ms += step_ms
        batches.append(stored(batch_id, at_ms, data.draw(st.integers(1, 5)), quota_version=batch_id // 7))
    rows = [row for batch in batches for row in batch]
    usage = pa.Table.from_pylist(data.draw(st.permutations(rows)))
    found = [
        (batch.batch_id, batch.evaluated_at_ms, batch.quota_version, sorted(batch.usage["user"].to_pylist()))
        for batch in batches_of(usage)
    ]
    wanted = [
        (batch[0]["batch_id"], batch[0]["evaluated_at_ms"], batch[0]["quota_version"], [row["user"] for row in batch])
        for batch in batches
    ]
    assert found == wanted


def test_no_rows_are_no_batches() -> None:
    assert list(batches_of(pa.Table.from_pylist(stored(0, T0_MS)).slice(0, 0))) == []


def test_two_queries_with_one_batch_number_stay_two_batches() -> None:
    usage = pa.Table.from_pylist([*stored(4, T0_MS, 2, "a"), *stored(4, T0_MS, 3, "b")])
    assert [(batch.query_id, batch.usage.num_rows) for batch in batches_of(usage)] == [("a", 2), ("b", 3)]


def test_of_two_queries_at_one_instant_the_last_ones_batches_come_last() -> None:
    usage = pa.Table.from_pylist([*stored(7, T0_MS, 1, "b"), *stored(0, T0_MS, 1, "a"), *stored(8, T0_MS - 1, 1, "a")])
    assert [(batch.query_id, batch.batch_id) for batch in batches_of(usage, "a")] == [("a", 8), ("b", 7), ("a", 0)]
    assert [(batch.query_id, batch.batch_id) for batch in batches_of(usage, "b")] == [("a", 8), ("a", 0), ("b", 7)]


def batch_at(batch_id: int, at_ms: int, produced_bytes: int, quota_version: int = 1) -> StoredBatch:
    usage = table([usage_row(at_ms, produced_bytes=produced_bytes)])
    return StoredBatch("q", batch_id, at_ms, quota_version, usage=usage)


def bounded(version: int) -> QuotaSnapshot:
    return QuotaSnapshot.from_rows([quota_row(producer_byte_rate=1_000.0 * version)], version)


def test_each_batch_is_decided_with_its_own_quotas_at_its_own_instant() -> None:
    batches = [batch_at(0, T0_MS, 30_000), batch_at(1, T0_MS + 500, 0, quota_version=2), batch_at(2, T0_MS + 900, 0)]
    bounds = [one.decisions["bound"].to_pylist() for one in replay(QuotaEngine(), batches, bounded)]
    windows = [one.decisions["window_ms"].to_pylist() for one in replay(QuotaEngine(), batches, bounded)]
    assert (bounds, windows) == ([[1_000.0], [2_000.0], [1_000.0]], [[10_000], [10_500], [10_900]])


def test_a_replay_decides_the_same_only_if_it_begins_one_warm_up_earlier() -> None:
    batches = [batch_at(batch_id, T0_MS + batch_id * 1_000, 1_200) for batch_id in range(40)]
    whole = [one.decisions.to_pylist() for one in replay(QuotaEngine(), batches, bounded)]
    reach = 11 + 1  # one batch per second: the sample windows of a rate, and one more
    warm = [one.decisions.to_pylist() for one in replay(QuotaEngine(), batches[30 - reach :], bounded)]
    cold = [one.decisions.to_pylist() for one in replay(QuotaEngine(), batches[30:], bounded)]
    assert warm[reach:] == whole[30:]
    assert cold != whole[30:]
