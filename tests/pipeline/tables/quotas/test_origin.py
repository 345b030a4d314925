from pathlib import Path

import pytest

from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.history import origin_of
from pipeline.tables.quotas.table import EditAudit, QuotaTable

AUDIT = EditAudit(actor="carol", host="ops1", tool_version="0.1.0", reason="month end")


@pytest.fixture
def table(tmp_path: Path) -> QuotaTable:
    create_missing(str(tmp_path), [TABLES["quotas"]])
    return QuotaTable(str(tmp_path))


def change(user: str, **bounds: float | None) -> QuotaChange:
    return QuotaChange(user, "", bounds)


def test_the_edit_that_set_a_bound_is_found_also_after_edits_of_other_entities(table: QuotaTable) -> None:
    table.alter([change("alice", producer_byte_rate=1.0)], AUDIT)
    raised = table.alter([change("alice", producer_byte_rate=2.0)], AUDIT)
    table.alter([change("bob", producer_byte_rate=9.0)], AUDIT)
    newest = table.alter([change("alice", consumer_byte_rate=7.0)], AUDIT)
    origin = origin_of(table, newest, "alice", "", "producer_byte_rate")
    assert (origin.version, origin.before, origin.after, origin.is_exact) == (raised, 1.0, 2.0, True)
    assert origin.commit is not None
    assert origin.commit.audit == AUDIT


def test_a_new_bound_was_none_before(table: QuotaTable) -> None:
    version = table.alter([change("alice", producer_byte_rate=1.0)], AUDIT)
    origin = origin_of(table, version, "alice", "", "producer_byte_rate")
    assert (origin.version, origin.before, origin.after) == (version, None, 1.0)


def test_later_edits_do_not_change_the_origin_of_a_bound_in_an_older_version(table: QuotaTable) -> None:
    version = table.alter([change("alice", producer_byte_rate=1.0)], AUDIT)
    table.alter([change("alice", producer_byte_rate=5.0)], AUDIT)
    assert origin_of(table, version, "alice", "", "producer_byte_rate").after == 1.0
