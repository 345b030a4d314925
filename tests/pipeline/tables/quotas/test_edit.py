from typing import Any

import pytest

from pipeline.errors import Refused
from pipeline.tables.quotas.edit import QuotaChange, altered, refuse_absent, validated


def row(user: str, rate: float | None) -> dict[str, Any]:
    return {"user": user, "client_id": "", "producer_byte_rate": rate, "mode": "enforce"}


def test_an_entity_with_two_rows_is_refused() -> None:
    with pytest.raises(Refused, match="user-principal 'alice' has 2 rows, not one"):
        validated([row("alice", 1.0), row("alice", 2.0)])


def test_an_edit_of_an_entity_with_two_rows_leaves_one() -> None:
    rows = altered([row("alice", 1.0), row("alice", 2.0)], [QuotaChange("alice", "", {"producer_byte_rate": 3.0})])
    assert rows == [row("alice", 3.0)]


def test_an_edit_keeps_both_rows_of_another_entity_that_has_two() -> None:
    rows = altered([row("alice", 1.0), row("alice", 2.0)], [QuotaChange("bob", "", {"producer_byte_rate": 3.0})])
    assert [r["user"] for r in rows] == ["alice", "alice", "bob"]


def test_rows_that_no_change_names_stay_also_without_bounds() -> None:
    assert altered([row("alice", None)], []) == [row("alice", None)]


def test_removing_what_is_not_there_changes_nothing() -> None:
    assert altered([row("alice", 1.0)], [QuotaChange("bob", "", remove=True)]) == [row("alice", 1.0)]


def test_a_fraction_is_refused_when_it_is_set_and_stays_when_it_is_stored() -> None:
    fraction = {**row("alice", 1.5)}
    with pytest.raises(Refused, match=r"producer_byte_rate cannot be a fractional value; got 1\.5"):
        validated([fraction])
    assert validated([fraction, row("bob", 1.0)], before=[fraction])[0]["producer_byte_rate"] == 1.5


def test_what_is_not_set_can_not_be_removed() -> None:
    rows = [row("alice", 1.0)]
    refuse_absent(rows, "alice", "", ["producer_byte_rate"])
    for columns, named in ((["owner", "producer_byte_rate", "mode"], "owner,mode"), (["note"], "note")):
        with pytest.raises(Refused, match=rf"Invalid config\(s\): {named}\."):
            refuse_absent(rows, "alice", "", columns)
    with pytest.raises(Refused):
        refuse_absent(rows, "bob", "", ["producer_byte_rate"])
