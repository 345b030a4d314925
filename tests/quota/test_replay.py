"""Batches of stored usage come back as they were decided; what differs between two decisions is told."""

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from quota.replay import KEY, batches_of, differences

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


def decision(user: str = "alice", batch_id: int = 1, **columns: Any) -> dict[str, Any]:
    key = {"query_id": "q", "batch_id": batch_id, "broker_id": "", "user": user, "client_id": "etl"}
    figures = {"quota_type": "producer_byte_rate", "mode": "enforce", "observed": 2.5, "max_throttle_time_ms": None}
    return {**key, **figures, **columns}


SCHEMA = pa.schema(
    [
        *((name, pa.int64() if name == "batch_id" else pa.string()) for name in KEY),
        ("observed", pa.float64()),
        ("max_throttle_time_ms", pa.int64()),
    ]
)


def decisions_of(*decisions: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(decisions), SCHEMA)


def test_equal_rows_in_any_order_do_not_differ() -> None:
    one, other = decision("alice"), decision("bob")
    assert differences(decisions_of(one, other), decisions_of(other, one)) == []


def test_a_column_that_differs_is_told_with_both_values() -> None:
    (found,) = differences(decisions_of(decision(observed=2.5)), decisions_of(decision(observed=2.5 + 2**-51)))
    assert (found.key["user"], found.columns) == ("alice", {"observed": (2.5, 2.5 + 2**-51)})


def test_a_value_and_none_differ() -> None:
    (found,) = differences(decisions_of(decision(max_throttle_time_ms=1_000)), decisions_of(decision()))
    assert found.columns == {"max_throttle_time_ms": (1_000, None)}


def test_a_row_on_one_side_only_is_told_for_that_side() -> None:
    found = differences(
        decisions_of(decision("alice"), decision("bob")), decisions_of(decision("bob"), decision("carol"))
    )
    assert [(one.key["user"], one.is_stored, one.is_recomputed) for one in found] == [
        ("alice", True, False),
        ("carol", False, True),
    ]


def test_differences_come_in_the_order_of_the_batches() -> None:
    stored = decisions_of(*(decision(batch_id=batch_id, observed=0.0) for batch_id in (10, 9, 2)))
    again = decisions_of(*(decision(batch_id=batch_id) for batch_id in (10, 9, 2)))
    assert [one.key["batch_id"] for one in differences(stored, again)] == [2, 9, 10]


def test_columns_that_only_the_stored_rows_have_are_not_compared() -> None:
    stored = decisions_of(decision()).append_column("date", pa.array(["2026-11-21"]))
    assert differences(stored, decisions_of(decision())) == []
