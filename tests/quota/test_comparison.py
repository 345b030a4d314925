from typing import Any

import pyarrow as pa

from quota.replay import KEY, differences


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


def rows(*decisions: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(decisions), SCHEMA)


def test_equal_rows_in_any_order_do_not_differ() -> None:
    one, other = decision("alice"), decision("bob")
    assert differences(rows(one, other), rows(other, one)) == []


def test_a_column_that_differs_is_told_with_both_values() -> None:
    (found,) = differences(rows(decision(observed=2.5)), rows(decision(observed=2.5 + 2**-51)))
    assert (found.key["user"], found.columns) == ("alice", {"observed": (2.5, 2.5 + 2**-51)})


def test_a_value_and_none_differ() -> None:
    (found,) = differences(rows(decision(max_throttle_time_ms=1_000)), rows(decision()))
    assert found.columns == {"max_throttle_time_ms": (1_000, None)}


def test_a_row_on_one_side_only_is_told_for_that_side() -> None:
    found = differences(rows(decision("alice"), decision("bob")), rows(decision("bob"), decision("carol")))
    assert [(one.key["user"], one.is_stored, one.is_recomputed) for one in found] == [
        ("alice", True, False),
        ("carol", False, True),
    ]


def test_differences_come_in_the_order_of_the_batches() -> None:
    stored = rows(*(decision(batch_id=batch_id, observed=0.0) for batch_id in (10, 9, 2)))
    again = rows(*(decision(batch_id=batch_id) for batch_id in (10, 9, 2)))
    assert [one.key["batch_id"] for one in differences(stored, again)] == [2, 9, 10]


def test_columns_that_only_the_stored_rows_have_are_not_compared() -> None:
    stored = rows(decision()).append_column("date", pa.array(["2026-11-21"]))
    assert differences(stored, rows(decision())) == []
