"""Batches of stored usage come back as they were decided; what differs between two decisions is told."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.replay import KEY, Difference, Evaluation, batches_of, differences

T0_MS = 1_700_000_000_000


def stored(batch_id: int, at_ms: int, rows: int = 1, query_id: str = "q") -> list[dict[str, Any]]:
    key = {
        "query_id": query_id,
        "batch_id": batch_id,
        "evaluated_at_ms": at_ms,
        "quota_version": batch_id // 7,
        "tenants_version": -1,
    }
    return [{**key, "time_epoch": 0, "user": f"u{row}"} for row in range(rows)]


@given(st.data())
def test_batches_come_back_whole_and_in_the_order_they_were_decided(data: st.DataObject) -> None:
    batches, at_ms = [], T0_MS
    for batch_id, step_ms in enumerate(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=60))):
        at_ms += step_ms
        batches.append(stored(batch_id, at_ms, data.draw(st.integers(1, 5))))
    usage = pa.Table.from_pylist(data.draw(st.permutations([row for batch in batches for row in batch])))
    found = [*batches_of(usage)]
    assert [sorted(one.usage["user"].to_pylist()) for one in found] == [[row["user"] for row in b] for b in batches]
    for one, (first, *_) in zip(found, batches, strict=True):
        key = {
            name: getattr(one, name)
            for name in ("query_id", "batch_id", "evaluated_at_ms", "quota_version", "tenants_version")
        }
        assert key == {name: first[name] for name in key}


def test_a_new_query_begins_after_the_last_instant_of_the_one_before_and_the_first_of_all_at_its_own() -> None:
    last = Evaluation("q", 7, T0_MS, 0)
    assert [last.least_ms("q"), last.least_ms("r"), Evaluation("", -1, 0, -1).least_ms("q")] == [T0_MS, T0_MS + 1, 0]
    assert list(batches_of(pa.Table.from_pylist(stored(7, T0_MS)).slice(0, 0))) == []


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


@pytest.mark.parametrize(
    ("kept", "again", "told"),
    [
        ([decision(), decision("bob")], [decision("bob"), decision()], []),
        ([decision()], [decision(observed=2.5 + 2**-51)], [("alice", 1, {"observed": (2.5, 2.5 + 2**-51)})]),
        ([decision(max_throttle_time_ms=9)], [decision()], [("alice", 1, {"max_throttle_time_ms": (9, None)})]),
        (
            [decision(), decision("bob")],
            [decision("bob"), decision("carol")],
            [("alice", 1, "not recomputed"), ("carol", 1, "not stored")],
        ),
        (
            [decision(batch_id=batch_id) for batch_id in (10, 9, 2)],
            [decision(batch_id=batch_id, observed=0.0) for batch_id in (2, 10, 9)],
            [("alice", batch_id, {"observed": (2.5, 0.0)}) for batch_id in (2, 9, 10)],
        ),
    ],
    ids=["in any order", "the last bit", "a value and none", "on one side only", "in the order of the batches"],
)
def test_what_differs_is_told(kept: list[Any], again: list[Any], told: list[Any]) -> None:
    stored = pa.Table.from_pylist(kept, SCHEMA).append_column("date", pa.array(["2026-11-21"] * len(kept)))
    found = differences(stored, pa.Table.from_pylist(again, SCHEMA))
    assert [(one.key["user"], one.key["batch_id"], what(one)) for one in found] == told


def what(one: Difference) -> Any:
    if not one.is_stored:
        return "not stored"
    return one.columns if one.is_recomputed else "not recomputed"
