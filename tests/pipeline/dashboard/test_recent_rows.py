"""Of the newest rows of a table none is forgotten without being told, and none is told twice."""

from typing import Any

import pyarrow as pa
import pytest

from pipeline.dashboard.recent import RecentRows, Wanted, recent_sums

COLUMNS = ("evaluated_at_ms", "sample_start_ms", "produced_bytes")


def rows(*used: tuple[str, str, int, int | None]) -> pa.Table:
    """(user, client_id, second, produced bytes)."""
    users, client_ids, seconds, amounts = zip(*used, strict=True)
    at_ms = pa.array([second * 1_000 for second in seconds], pa.int64())
    return pa.table({
        "user": users, "client_id": client_ids, "evaluated_at_ms": at_ms, "sample_start_ms": at_ms,
        "produced_bytes": pa.array(amounts, pa.int64()),
    })  # fmt: skip


def held(*parts: pa.Table, most_rows: int = 100_000) -> RecentRows:
    found = RecentRows("evaluated_at_ms", 0)
    for part in parts:
        found = found.with_rows(part, COLUMNS, most_rows)
    return found


def amounts(found: RecentRows, *names: str | None, since: int = 0, until: int = 10_000) -> list[Any]:
    user, client_id = names
    table = found.where((user, client_id), "evaluated_at_ms", since * 1_000, until * 1_000)
    return sorted(table["produced_bytes"].to_pylist()) if table.num_rows else []


@pytest.mark.parametrize(
    ("names", "expected"),
    [(("a", "x"), [1]), (("a", ""), [2]), (("a", None), [1, 2]), ((None, "x"), [1, 3]), (("c", None), [])],
)
def test_a_name_that_is_empty_is_a_name_and_none_is_any(names: tuple[str, str], expected: list[int]) -> None:
    assert amounts(held(rows(("a", "x", 1, 1), ("a", "", 1, 2), ("b", "x", 1, 3))), *names) == expected


def test_a_span_has_its_begin_and_not_its_end() -> None:
    found = held(rows(("a", "x", 1, 1), ("a", "x", 2, 2)), rows(("a", "x", 3, 3)))
    assert amounts(found, "a", "x", since=2, until=3) == [2]


def test_what_is_too_much_goes_and_rows_as_old_as_it_do_not_count() -> None:
    first = rows(*(("a", "x", 1, 1) for _ in range(8_192)), ("a", "x", 2, 2))
    second = rows(("a", "x", 2, 3), ("a", "x", 3, 4))
    assert held(first, second, most_rows=8_195).begin == 0
    found = held(first, second, most_rows=8_194)
    assert (found.begin, len(found)) == (2_001, 2)
    assert amounts(found, "a", "x") == [4]


def test_what_is_forty_minutes_old_goes() -> None:
    first = rows(*(("a", "x", 1, 1) for _ in range(8_192)))
    assert held(first, rows(("a", "x", 2_401, 2))).begin == 0
    assert held(first, rows(("a", "x", 2_402, 2))).begin == 1_001


def test_sums_are_by_step_and_null_is_nothing() -> None:
    found = held(rows(("a", "x", 9, 1), ("a", "x", 10, None), ("a", "y", 19, 5)), rows(("a", "x", 20, 7)))
    wanted = [Wanted("own", ("a", "x"), ("produced_bytes",)), Wanted("all", ("a", None), ("produced_bytes",) * 2)]
    assert recent_sums(found, 9_000, 20_000, 10_000, wanted) == {"step": [0, 1], "own": [1, 0], "all": [2, 10]}
    assert recent_sums(found, 30_000, 40_000, 10_000, wanted) == {}
