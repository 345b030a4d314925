import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from filelock import FileLock

from pipeline.errors import Conflict, Refused, TableMissing
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import EditAudit, QuotaTable
from tests.touched_tables import add_columns

AUDIT = EditAudit(actor="carol", host="ops1", tool_version="0.1.0", reason="#42: noisy neighbour")


@pytest.fixture
def table(tmp_path: Path) -> QuotaTable:
    create_missing(str(tmp_path), [TABLES["quotas"]])
    return QuotaTable(str(tmp_path))


def bound(user: str, rate: float | None, **values: Any) -> QuotaChange:
    return QuotaChange(user, "", {"producer_byte_rate": rate, **values})


def rates(table: QuotaTable, version: int | None = None) -> dict[str, float]:
    return {row["user"]: row["producer_byte_rate"] for row in table.read(version).rows}


def test_an_edit_is_one_version_and_earlier_versions_stay_readable(table: QuotaTable) -> None:
    first = table.alter([bound("alice", 1.0), bound("bob", 2.0)], AUDIT)
    second = table.alter([bound("alice", 3.0), QuotaChange("bob", "", remove=True)], AUDIT)
    assert second == first + 1
    assert (rates(table), rates(table, first)) == ({"alice": 3.0}, {"alice": 1.0, "bob": 2.0})


def test_an_alteration_leaves_the_other_columns_alone(table: QuotaTable) -> None:
    table.alter([bound("alice", 1.0, owner="team-a", mode="shadow")], AUDIT)
    table.alter([QuotaChange("alice", "", {"request_percentage": 50.0})], AUDIT)
    (row,) = table.read().rows
    assert row == {
        "user": "alice",
        "client_id": "",
        "producer_byte_rate": 1.0,
        "consumer_byte_rate": None,
        "request_percentage": 50.0,
        "mode": "shadow",
        "owner": "team-a",
        "note": None,
    }


def test_a_row_that_loses_its_last_bound_is_removed_unless_it_is_exempt(table: QuotaTable) -> None:
    table.alter([bound("alice", 1.0), bound("bob", 1.0)], AUDIT)
    table.alter([bound("alice", None), bound("bob", None, mode="exempt")], AUDIT)
    assert rates(table) == {"bob": None}


def test_columns_that_others_have_added_keep_their_values_and_are_null_in_new_rows(table: QuotaTable) -> None:
    table.alter([bound(user, 1.0) for user in ("alice", "bob", "carol")], AUDIT)
    add_columns(table.uri)
    stored = DeltaTable(table.uri)
    at = datetime(2026, 1, 2, 3, 4, 5, 678, UTC)
    values = {"team": "red", "seen": at, "contact": {"mail": ["a@b", None]}}
    others = [dict.fromkeys(values), values, dict.fromkeys(values) | {"team": "blue"}]
    rows = [{**row, **other} for row, other in zip(table.read().rows, others, strict=True)]
    write_deltalake(stored, pa.Table.from_pylist(rows, pa.schema(stored.schema())), mode="overwrite")
    version = table.alter([bound("aaron", 1.0), bound("bob", 2.0), QuotaChange("carol", "", remove=True)], AUDIT)
    assert rates(table) == {"aaron": 1.0, "alice": 1.0, "bob": 2.0}
    found = DeltaTable(table.uri).to_pyarrow_table().sort_by("user").select(list(values)).to_pylist()
    assert found == [others[0], others[0], values]
    assert table.alter([bound("bob", 2.0)], AUDIT) == version, "nothing has changed"
    assert "team" not in table.read().rows[0]


def test_an_edit_that_changes_nothing_makes_no_commit(table: QuotaTable) -> None:
    version = table.alter([bound("alice", 1.0)], AUDIT)
    assert table.alter([bound("alice", 1.0)], AUDIT) == version


def test_all_mistakes_of_an_edit_come_at_once_and_nothing_is_stored(table: QuotaTable) -> None:
    version = table.read().version
    with pytest.raises(Refused) as refused:
        table.alter([bound("alice", 0.0), bound("bob", 1.0, mode="off"), bound("", 1.0)], AUDIT)
    assert refused.value.message == "quotas were not changed: " + "; ".join(
        (
            "a row without user and client-id: neither a user nor a client-id is given",
            "user-principal 'alice': Quota producer_byte_rate must be greater than 0; got 0.0",
            "user-principal 'bob': 'mode': Input should be 'enforce', 'shadow' or 'exempt'; got 'off'",
        )
    )
    assert table.read().version == version


def test_the_watch_sees_every_new_version(table: QuotaTable) -> None:
    assert table.version() == table.read().version
    version = table.alter([bound("alice", 1.0)], AUDIT)
    assert (table.version(), table.version()) == (version, version)


def test_the_mode_is_a_property_with_a_version_of_its_own(table: QuotaTable) -> None:
    before = table.read()
    version = table.set_mode("shadow", AUDIT)
    after = table.read()
    assert (before.scope, before.mode, after.scope, after.mode) == ("cluster", "enforce", "cluster", "shadow")
    assert version == after.version == before.version + 1
    assert table.set_mode("shadow", AUDIT) == version
    assert table.read(before.version).mode == "enforce"


def test_the_history_tells_who_and_why(table: QuotaTable) -> None:
    version = table.alter([bound("alice", 1.0)], AUDIT)
    newest, *older = table.history(10)
    assert (newest.version, newest.audit) == (version, AUDIT)
    assert all(commit.audit is None for commit in older)


def test_an_edit_waits_for_the_lock_and_gives_up_in_time(table: QuotaTable, tmp_path: Path) -> None:
    hasty = QuotaTable(str(tmp_path), lock_timeout_seconds=0.05)
    with (
        FileLock(tmp_path / "quotas.lock"),
        pytest.raises(Conflict, match=r"quotas\.lock is held by another edit"),
    ):
        hasty.alter([bound("alice", 1.0)], AUDIT)
    assert hasty.alter([bound("alice", 1.0)], AUDIT) == hasty.read().version


def test_edits_made_at_the_same_time_are_all_stored(table: QuotaTable, tmp_path: Path) -> None:
    def edit(user: str) -> None:
        QuotaTable(str(tmp_path)).alter([bound(user, 1.0)], AUDIT)

    threads = [threading.Thread(target=edit, args=(f"u{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(rates(table)) == [f"u{number}" for number in range(8)]


def test_an_edit_for_another_version_is_a_conflict(table: QuotaTable) -> None:
    version = table.alter([bound("alice", 1.0)], AUDIT)
    with pytest.raises(Conflict, match=f"is at version {version}, not at {version - 1}") as refused:
        table.commit(lambda _: [], AUDIT, if_version=version - 1)
    assert refused.value.exit_code == 4
    assert table.commit(lambda _: [], AUDIT, if_version=version).version == version + 1


def test_a_plan_writes_nothing_and_waits_for_no_lock(table: QuotaTable, tmp_path: Path) -> None:
    version = table.alter([bound("alice", 1.0)], AUDIT)
    with FileLock(tmp_path / "quotas.lock"):
        plan = table.plan(lambda _: [])
    assert (plan.version, plan.rows, [row["user"] for row in plan.before.rows]) == (version, (), ["alice"])
    assert table.read().version == version


def test_a_version_that_does_not_exist_is_missing(table: QuotaTable) -> None:
    with pytest.raises(TableMissing, match="version 99"):
        table.read(99)


def test_edits_keep_the_protocol_and_the_constraints(table: QuotaTable) -> None:
    table.alter([bound("alice", 1.0)], AUDIT)
    table.set_mode("shadow", AUDIT)
    protocol = DeltaTable(table.uri).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 3)
    assert len([k for k in DeltaTable(table.uri).metadata().configuration if k.startswith("delta.constraints.")]) == 5
