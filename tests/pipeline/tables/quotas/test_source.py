"""The quotas and tenants in force follow their tables. If a version is not valid, the last valid one stays in force."""

import logging
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.errors import PipelineError
from pipeline.job.diagnosis import diagnose
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.port import TableUnreadable
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.quotas.table import EditedTable, QuotaTable, TenantTable
from quota.errors import InvalidQuotas
from schemas.arrow import arrow_schema
from schemas.rows import QuotaRow
from tests.pipeline.tables.factories import AUDIT, bound, quota_table, tenant, tenant_table

GOOD = {"user": "alice", "client_id": "", "producer_byte_rate": 1.0, "mode": "enforce"}

# What the CHECK constraints do not refuse, or do not refuse once they are dropped: row and message.
BAD_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "entity twice": (GOOD, "row 2: user 'alice', client-id '' is in row 1 too"),
    "zero": (
        {**GOOD, "user": "bob", "producer_byte_rate": 0.0},
        "producer_byte_rate is 0.0, not a finite number above 0",
    ),
    "NaN": (
        {**GOOD, "user": "bob", "request_percentage": float("nan")},
        "row 2 (user 'bob', client-id ''): request_percentage is nan, not a finite number above 0",
    ),
    "mode": ({**GOOD, "user": "bob", "mode": "observe"}, "unknown mode 'observe'; known are enforce, shadow, exempt"),
    "nobody": ({**GOOD, "user": ""}, "neither a user nor a client-id"),
}


@pytest.fixture
def table(tmp_path: Path) -> QuotaTable:
    table = quota_table(tmp_path)
    table.alter([bound("alice", 1.0)], AUDIT)
    return table


def write_past_us(table: EditedTable[Any], row: dict[str, Any]) -> int:
    """Drop the constraints and append a row, as another tool may do. Returns the version."""
    handle = DeltaTable(table.uri)
    for name in [key for key in handle.metadata().configuration if key.startswith("delta.constraints.")]:
        handle.alter.drop_constraint(name.removeprefix("delta.constraints."))
    write_deltalake(handle, pa.Table.from_pylist([row], schema=arrow_schema(table.kind.model)), mode="append")
    return DeltaTable(table.uri).version()


@pytest.mark.parametrize(("row", "why"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_leaves_the_last_valid_version_in_force(
    table: QuotaTable, row: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = QuotaSource(table)
    valid = source.pin()
    version = write_past_us(table, row)
    with caplog.at_level(logging.ERROR):
        assert source.poll() is None
    assert source.pin() is valid
    assert f"quotas v{version} are refused, the last valid version stays in force" in caplog.text
    assert why in caplog.text
    # A start with the bad table finds the same quotas. (Dropping the constraints made versions of its own.)
    assert QuotaSource(table).pin().quotas == valid.quotas


def test_the_mode_of_the_table_is_a_version_that_makes_every_row_shadow(table: QuotaTable) -> None:
    source = QuotaSource(table)
    version = table.set_mode("shadow", AUDIT)
    snapshot = source.poll()
    assert snapshot is not None
    assert (snapshot.version, [quota.mode for quota in snapshot.quotas]) == (version, ["shadow"])
    table.set_mode("enforce", AUDIT)
    assert [quota.mode for quota in (source.poll() or snapshot).quotas] == ["enforce"]


def test_a_table_without_a_valid_version_is_refused(tmp_path: Path) -> None:
    schema = arrow_schema(QuotaRow)
    write_deltalake(str(tmp_path / "quotas"), pa.Table.from_pylist([{**GOOD, "mode": "observe"}], schema=schema))
    with pytest.raises(InvalidQuotas, match="row 1"):
        QuotaSource(QuotaTable(str(tmp_path)))
    settings = Settings(tables=TablesSettings(root=str(tmp_path)), run_dir=tmp_path)
    row_finding, fix = (finding for finding in diagnose(settings) if finding.subject == "quotas")
    assert "unknown mode 'observe'" in row_finding.text
    assert "no version is valid" in fix.text


def test_a_version_that_could_not_be_read_is_read_at_the_next_poll(table: QuotaTable) -> None:
    source = QuotaSource(table)
    version = table.alter([bound("alice", 2.0)], AUDIT)
    (new_file,) = {Path(uri) for uri in DeltaTable(table.uri).file_uris()}
    away = new_file.rename(new_file.with_suffix(".away"))
    with pytest.raises(PipelineError):
        source.poll()
    away.rename(new_file)
    assert [quota.version for quota in (source.poll(), source.poll()) if quota is not None] == [version]


# Tenants.


@pytest.fixture
def tenants(table: QuotaTable) -> TenantTable:
    tenants = tenant_table(table.root)
    tenants.commit(lambda _: [tenant("a", 10.0)], AUDIT)
    return tenants


def held(source: QuotaSource) -> tuple[int, int, dict[str, float | None]]:
    snapshot = source.pin()
    return *snapshot.versions, {one.name: one.bounds[0] for one in snapshot.tenants}


def test_quotas_and_tenants_are_pinned_together_and_edits_are_seen(table: QuotaTable, tenants: TenantTable) -> None:
    source = QuotaSource(table)
    first, second = table.version(), tenants.version()
    assert held(source) == (first, second, {"a": 10.0})
    assert source.poll() is None
    tenants.commit(lambda rows: [*rows, tenant("b", 5.0)], AUDIT)
    assert source.poll() is source.pin()
    assert held(source) == (first, second + 1, {"a": 10.0, "b": 5.0})
    table.alter([bound("alice", 2.0)], AUDIT)
    assert source.poll() is source.pin()
    assert held(source) == (first + 1, second + 1, {"a": 10.0, "b": 5.0})
    assert source.poll() is None


def test_without_their_table_there_are_no_tenants_until_it_is_made(table: QuotaTable) -> None:
    source = QuotaSource(table)
    assert held(source) == (table.version(), -1, {})
    tenants = tenant_table(table.root)
    assert source.poll() is not None, "from now on batches name a version of the tenants"
    assert held(source) == (table.version(), tenants.version(), {})
    tenants.commit(lambda _: [tenant("a", 10.0)], AUDIT)
    source.poll()
    assert held(source) == (table.version(), tenants.version(), {"a": 10.0})


def test_tenants_that_are_not_valid_leave_the_last_valid_version_in_force(
    table: QuotaTable, tenants: TenantTable, caplog: pytest.LogCaptureFixture
) -> None:
    source = QuotaSource(table)
    valid = source.pin()
    settings = Settings(tables=TablesSettings(root=table.root), run_dir=Path(table.root))
    (sound,) = (finding.text for finding in diagnose(settings) if finding.subject == "tenants")
    assert sound == f"v{tenants.version()}: 1 tenant"
    version = write_past_us(tenants, tenant("b", 1.0, user_patterns=("a-*",)))
    with caplog.at_level(logging.ERROR):
        assert source.poll() is None
    assert source.pin() is valid
    assert source.is_refused()
    assert f"tenants v{version} are refused, the last valid version stays in force" in caplog.text
    assert "user pattern 'a-*' is in the tenants 'a' and 'b'" in caplog.text
    wrong, fix = (finding.text for finding in diagnose(settings) if finding.subject == "tenants")
    assert wrong == f"v{version}: user pattern 'a-*' is in the tenants 'a' and 'b'"
    assert f"v{version - 1} is in force" in fix
    assert f"kquota tenants rollback {version - 1}" in fix
    again = QuotaSource(table)
    assert again.pin().tenants == valid.tenants
    assert again.is_refused()
    table.alter([bound("alice", 2.0)], AUDIT)
    assert source.poll() is not None, "the quotas go on"
    assert source.pin().tenants == valid.tenants
    tenants.commit(lambda rows: rows[:1], AUDIT)
    assert source.poll() is not None
    assert not source.is_refused()
    assert [one.severity for one in diagnose(settings) if one.subject == "tenants"] == ["ok"]


def test_the_mode_of_the_quota_table_makes_every_tenant_shadow(table: QuotaTable, tenants: TenantTable) -> None:
    tenants.commit(lambda rows: [*rows, tenant("b", 1.0, mode="shadow")], AUDIT)
    source = QuotaSource(table)
    enforced = source.pin()
    table.set_mode("shadow", AUDIT)
    shadowed = source.poll()
    assert shadowed is not None
    modes = [[one.mode for one in snapshot.tenants] for snapshot in (enforced, shadowed)]
    assert modes == [["enforce", "shadow"], ["shadow", "shadow"]]
    assert [source.at(*snapshot.versions) for snapshot in (enforced, shadowed)] == [enforced, shadowed]


def test_earlier_versions_of_both_tables_are_found_again(table: QuotaTable, tenants: TenantTable) -> None:
    source = QuotaSource(table)
    first = source.pin()
    tenants.commit(lambda _: [tenant("a", 20.0)], AUDIT)
    table.alter([bound("alice", 2.0)], AUDIT)
    newest = source.poll()
    assert newest is not None
    for one in (source, QuotaSource(table)):
        assert one.at(*first.versions) == first
        assert one.at(*newest.versions) is one.pin()
        mixed = one.at(newest.version, first.tenants_version)
        assert (mixed.quotas, mixed.tenants) == (newest.quotas, first.tenants)
        assert (one.at(newest.version).tenants, one.at(newest.version).tenants_version) == ((), -1)


@pytest.mark.parametrize(("of_table", "other"), [(TenantTable, QuotaTable), (QuotaTable, TenantTable)])
def test_an_edit_comes_into_force_while_the_other_table_cannot_be_read(
    of_table: type, other: type, table: QuotaTable, tenants: TenantTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = QuotaSource(table)
    if other is QuotaTable:
        table.alter([bound("alice", 2.0)], AUDIT)
    else:
        tenants.commit(lambda _: [tenant("a", 20.0)], AUDIT)
    expected = table.version(), tenants.version()
    with monkeypatch.context() as patch:
        patch.setattr(of_table, "version", Mock(side_effect=TableUnreadable("it", "no answer")))
        assert source.poll() is source.pin()
        assert held(source)[:2] == expected
        with pytest.raises(PipelineError):
            source.poll()
    assert source.poll() is None
