"""The table of the brokers' quotas tells what kquota owns, to one writer at a time, whatever was deleted from it."""

from pathlib import Path

import pytest

from pipeline.tables.broker_quotas import (
    APPLIED,
    NAME,
    NOT_APPLIED,
    PENDING,
    BrokerQuotasTable,
    enforced_for,
    trim_changes,
)
from pipeline.tables.queries import read_table
from quota.broker_levels.entries import METERED, EntryKey, EntryKind
from quota.broker_levels.writes import Change
from tests.pipeline.tables.factories import new_table

T_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def change(user: str, new: float | None = 5.0, kind: EntryKind = EntryKind.LEVEL) -> Change:
    is_there = new is not None
    return Change(
        key=EntryKey(user, "", "producer_byte_rate"),
        old=None,
        new=new,
        bound=10.0 if is_there else None,
        kind=kind if is_there else None,
        demand={"1": None, "2": 2.5},
        cause="together_above",
        before=None,
        over_at_ms=T_MS - 5,
    )


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return new_table(tmp_path, NAME)


def taken_over(uri: str, cluster: str = "c1") -> BrokerQuotasTable:
    table = BrokerQuotasTable(str(Path(uri).parent), cluster)
    table.take_over()
    return table


@pytest.fixture
def table(uri: str) -> BrokerQuotasTable:
    return taken_over(uri)


def results(uri: str) -> list[tuple[str, str]]:
    """The user and the result of each row, by its number."""
    rows = sorted(read_table(uri).to_pylist(), key=lambda row: row["seq"])
    return [(row["user"], row["result"]) for row in rows]


def test_what_was_applied_last_is_owned_and_what_has_no_result_is_undecided(table: BrokerQuotasTable) -> None:
    table.append([(change("a"), PENDING), (change("b"), PENDING)], T_MS)
    table.append([(change("a"), APPLIED), (change("b"), "refused: no")], T_MS + 1)
    table.append([(change("a", 7.0), PENDING)], T_MS + 2)
    table.append([(change("a", 7.0), NOT_APPLIED), (change("c"), PENDING)], T_MS + 3)
    assert table.state() == ({change("a").key: change("a").owned(T_MS + 1)}, [change("c")])


def test_what_another_cluster_owns_is_not_ours(table: BrokerQuotasTable, uri: str) -> None:
    table.append([(change("a"), APPLIED)], T_MS)
    other = taken_over(uri, "c2")
    assert other.state()[0] == {}
    other.append([(change("a", None), APPLIED)], T_MS)
    assert len(taken_over(uri).state()[0]) == 1


def test_rows_that_a_failed_append_left_do_not_hide_those_of_the_next(table: BrokerQuotasTable, uri: str) -> None:
    # As if its commit had landed and its answer not: the writer does not know of rows 0 and 1.
    other = BrokerQuotasTable(str(Path(uri).parent), "c1")
    other._table, other._epoch = table._table, table._epoch
    other.append([(change("x"), PENDING), (change("y"), PENDING)], T_MS)
    table.append([(change("a"), PENDING)], T_MS)
    assert results(uri) == [("x", PENDING), ("y", PENDING), ("a", PENDING)]


def test_old_rows_are_deleted_but_not_those_that_say_what_is_owned(table: BrokerQuotasTable, uri: str) -> None:
    table.append([(change("a"), PENDING), (change("b"), PENDING), (change("c"), PENDING)], T_MS)
    table.append([(change("a"), APPLIED), (change("b"), APPLIED)], T_MS + 1)
    table.append([(change("b", None), APPLIED), (change("d"), APPLIED)], T_MS + 2)
    table.append([(change("d", 6.0), APPLIED), (change("e"), "refused: no")], T_MS + 3 * DAY_MS)
    before = table.state()
    assert trim_changes(uri, T_MS) == 0, "rows of that very instant stay"
    assert trim_changes(uri, T_MS + 2 * DAY_MS) == 5
    assert table.state() == before
    assert results(uri) == [("c", PENDING), ("a", APPLIED), ("d", APPLIED), ("e", "refused: no")]
    assert trim_changes(uri, T_MS + 2 * DAY_MS) == 0
    table.append([(change("c"), APPLIED)], T_MS + 3 * DAY_MS)
    assert trim_changes(uri, T_MS + 2 * DAY_MS) == 1


def test_metering_is_no_quota_that_holds_and_its_rows_go_with_the_others(table: BrokerQuotasTable, uri: str) -> None:
    table.append([(change("<default>", METERED, EntryKind.METERING), APPLIED), (change("a"), APPLIED)], T_MS)
    for user, held in (("a", ["a"]), ("b", [])):
        found = enforced_for(str(Path(uri).parent), user, "", ["producer_byte_rate"])
        assert [one.change.key.user for one in found] == held
    assert trim_changes(uri, T_MS + DAY_MS) == 1
    assert results(uri) == [("a", APPLIED)]
