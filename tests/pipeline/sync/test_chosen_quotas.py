"""A sync of some users sees the quota table as if it had no other rows."""

from pathlib import Path

import pytest

from pipeline.brokers.sync import ChosenQuotas
from pipeline.tables.layout import create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.quotas.table import QuotaTable, local_audit

ENTITIES = [("alice", ""), ("alice", "etl"), ("bob", ""), ("<default>", ""), ("", "dashboard")]


@pytest.mark.parametrize(
    ("users", "chosen"),
    [
        ((), ENTITIES),
        (("alice",), [("alice", ""), ("alice", "etl")]),
        (("bob", "<default>"), [("bob", ""), ("<default>", "")]),
        (("",), [("", "dashboard")]),
        (("carol",), []),
    ],
)
def test_the_rows_of_the_chosen_users_are_seen_and_no_others(
    users: tuple[str, ...], chosen: list[tuple[str, str]], tmp_path: Path
) -> None:
    create_missing(str(tmp_path))
    table, audit = QuotaTable(str(tmp_path)), local_audit("test")
    source = QuotaSource(table)
    quotas = ChosenQuotas(source, frozenset(users))
    assert quotas.pin().quotas == ()
    table.alter([QuotaChange(*entity, {"producer_byte_rate": 1.0}) for entity in ENTITIES], audit)
    seen = quotas.poll()
    assert seen is not None
    assert {(one.user, one.client_id) for one in seen.quotas} == set(chosen)
    assert seen == quotas.pin()
    assert seen.version == source.pin().version
    assert quotas.poll() is None
