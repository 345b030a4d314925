from typing import Any

import pytest

from pipeline.tables.errors import QuotaEditRefused
from pipeline.tables.quota_edit import QuotaChange, altered, validated


def row(user: str, rate: float | None) -> dict[str, Any]:
    return {"user": user, "client_id": "", "producer_byte_rate": rate, "mode": "enforce"}


def test_an_entity_with_two_rows_is_refused() -> None:
    with pytest.raises(QuotaEditRefused, match="quota of <alice, > must have one row; got 2"):
        validated([row("alice", 1.0), row("alice", 2.0)])


def test_an_edit_of_an_entity_with_two_rows_leaves_one() -> None:
    rows = altered([row("alice", 1.0), row("alice", 2.0)], [QuotaChange("alice", "", {"producer_byte_rate": 3.0})])
    assert rows == [row("alice", 3.0)]


def test_an_edit_hides_no_double_row_of_another_entity() -> None:
    rows = altered([row("alice", 1.0), row("alice", 2.0)], [QuotaChange("bob", "", {"producer_byte_rate": 3.0})])
    assert [r["user"] for r in rows] == ["alice", "alice", "bob"]


def test_rows_of_no_change_stay_without_bounds() -> None:
    assert altered([row("alice", None)], []) == [row("alice", None)]


def test_removing_what_is_not_there_changes_nothing() -> None:
    assert altered([row("alice", 1.0)], [QuotaChange("bob", "", remove=True)]) == [row("alice", 1.0)]
