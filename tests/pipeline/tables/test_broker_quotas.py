"""The table of the brokers' quotas tells what kquota owns, to one writer at a time, whatever was deleted from it."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import Conflict
from pipeline.tables.broker_quotas import (
    APPLIED,
    NAME,
    NOT_APPLIED,
    PENDING,
    BrokerQuotasTable,
    enforced_for,
    trim_changes,
)
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import table_uri
from pipeline.tables.queries import StoredTable
from quota.broker_levels.entries import METERED, EntryKey, EntryKind
from quota.broker_levels.writes import Change

T_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def change(user: str, new: float | None = 5.0, **columns: object) -> Change:
    is_there = new is not None
    made = Change(
        key=EntryKey(user, "", "producer_byte_rate"),
        old=None,
        new=new,
        bound=10.0 if is_there else None,
        kind=EntryKind.LEVEL if is_there else None,
        demand={"1": None, "2": 2.5},
        cause="together_above",
        before=None,
        over_at_ms=T_MS - 5,
    )
    return replace(made, **columns)  # type: ignore[arg-type]


@pytest.fixture
def root(tmp_path: Path) -> str:
    create_missing(str(tmp_path), [TABLES[NAME]])
    return str(tmp_path)


@pytest.fixture
def table(root: str) -> BrokerQuotasTable:
    table = BrokerQuotasTable(root, "c1")
    table.take_over()
    return table


def rows(root: str) -> list[dict[str, object]]:
    found = StoredTable(table_uri(root, NAME)).read()
    return sorted(found.to_pylist(), key=lambda row: row["seq"])


def test_what_was_applied_last_is_owned_and_what_has_no_result_is_undecided(table: BrokerQuotasTable) -> None:
    table.append([(change("a"), PENDING), (change("b"), PENDING)], T_MS)
    table.append([(change("a"), APPLIED), (change("b"), "refused: no")], T_MS + 1)
    table.append([(change("a", 7.0), PENDING)], T_MS + 2)
    table.append([(change("a", 7.0), NOT_APPLIED), (change("c"), PENDING)], T_MS + 3)
    assert table.state() == ({change("a").key: change("a").owned(T_MS + 1)}, [change("c")])


def test_an_earlier_sync_is_refused_at_its_next_append_and_when_it_asks(table: BrokerQuotasTable, root: str) -> None:
    table.append([(change("a"), PENDING)], T_MS)
    table.refuse_fenced()
    BrokerQuotasTable(root, "c1").take_over()
    with pytest.raises(Conflict):
        table.refuse_fenced()
    with pytest.raises(Conflict):
        table.append([(change("b"), PENDING)], T_MS)
    assert len(rows(root)) == 1


def test_what_another_cluster_owns_is_not_ours(table: BrokerQuotasTable, root: str) -> None:
    table.append([(change("a"), APPLIED)], T_MS)
    other = BrokerQuotasTable(root, "c2")
    other.take_over()
    assert other.state()[0] == {}
    other.append([(change("a", None), APPLIED)], T_MS)
    assert len(BrokerQuotasTable(root, "c1").state()[0]) == 1


def test_rows_that_a_failed_append_left_do_not_hide_those_of_the_next(table: BrokerQuotasTable, root: str) -> None:
    # As if its commit had landed and its answer not: the writer does not know of rows 0 and 1.
    other = BrokerQuotasTable(root, "c1")
    other._table, other._epoch = table._table, table._epoch
    other.append([(change("x"), PENDING), (change("y"), PENDING)], T_MS)
    table.append([(change("a"), PENDING)], T_MS)
    assert [(row["seq"], row["user"]) for row in rows(root)] == [(0, "x"), (1, "y"), (2, "a")]


def test_old_rows_are_deleted_but_not_those_that_say_what_is_owned(table: BrokerQuotasTable, root: str) -> None:
    table.append([(change("a"), PENDING), (change("b"), PENDING), (change("c"), PENDING)], T_MS)
    table.append([(change("a"), APPLIED), (change("b"), APPLIED)], T_MS + 1)
    table.append([(change("b", None), APPLIED), (change("d"), APPLIED)], T_MS + 2)
    table.append([(change("d", 6.0), APPLIED), (change("e"), "refused: no")], T_MS + 3 * DAY_MS)
    before = table.state()
    uri = table_uri(root, NAME)
    assert trim_changes(uri, T_MS) == 0, "rows of that very instant stay"
    assert trim_changes(uri, T_MS + 2 * DAY_MS) == 5
    assert table.state() == before
    assert [(row["user"], row["result"]) for row in rows(root)] == [
        ("c", PENDING),
        ("a", APPLIED),
        ("d", APPLIED),
        ("e", "refused: no"),
    ]
    assert trim_changes(uri, T_MS + 2 * DAY_MS) == 0
    table.append([(change("c"), APPLIED)], T_MS + 3 * DAY_MS)
    assert trim_changes(uri, T_MS + 2 * DAY_MS) == 1


def test_metering_is_no_quota_that_holds_and_its_rows_go_with_the_others(table: BrokerQuotasTable, root: str) -> None:
    table.append([(change("<default>", METERED, kind=EntryKind.METERING), APPLIED), (change("a"), APPLIED)], T_MS)
    of_clients = [enforced_for(root, user, "", ["producer_byte_rate"]) for user in ("a", "b")]
    assert [[one.change.key.user for one in found] for found in of_clients] == [["a"], []]
    assert trim_changes(table_uri(root, NAME), T_MS + DAY_MS) == 1
    assert [row["user"] for row in rows(root)] == ["a"]
