"""`kquota meter enable|disable|status` on a real broker."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.brokers.metering import measured, wanted_keys
from pipeline.brokers.native import NativeQuota, NativeQuotas, imported
from pipeline.demo.broker import EmbeddedBroker
from pipeline.settings.model import Settings, SyncSettings, TablesSettings
from pipeline.tables.layout import create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable, local_audit
from quota.broker_levels.entries import METERED, EntryKey
from quota.entity import QUOTA_TYPES
from tests.pipeline.brokers.quota_broker import await_values, client, pair, user
from tests.pipeline.cli.running import Answer, kquota

D = "<default>"
PRODUCE, FETCH, REQUEST = QUOTA_TYPES


@pytest.mark.broker
def test_it_is_written_with_yes_where_it_hides_nothing_and_taken_away(
    native: NativeQuotas, quota_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    def meter(verb: str, *options: str) -> Answer:
        given = ("--bootstrap-server", quota_broker.bootstrap_servers, *options)
        tables = () if verb == "status" else ("--tables", str(tmp_path / "none"))
        answer = kquota("meter", verb, *given, *tables, "-o", "json")
        assert answer.exit_code == 0, answer.stderr
        return answer

    def by_type() -> list[str]:
        return [row["by"] for row in json.loads(meter("status").stdout)]

    others = {client("app"): {PRODUCE: 5e6}, user("alice"): {FETCH: 7e6}}
    native.alter(others)
    await_values(native, others)
    assert by_type() == ["", "", ""]
    assert "dry run, nothing was written; values: 3. To write them add --yes" in meter("enable").stderr
    await_values(native, others)

    assert "values written: 3" in meter("enable", "--yes").stderr
    on: dict[Any, Any] = {
        **others,
        pair(None, None): {FETCH: METERED, REQUEST: METERED},
        client(None): {PRODUCE: METERED},
    }
    await_values(native, on)
    assert by_type() == ["client-id", "user and client-id", "user and client-id"]
    assert "nothing to write: every client is measured already" in meter("enable", "--yes").stderr

    assert "values written: 3" in meter("disable", "--yes").stderr
    await_values(native, others)
    assert "nothing to write: metering is off already" in meter("disable", "--yes").stderr


def test_rows_that_the_sync_leaves_out_do_not_move_it(tmp_path: Path) -> None:
    create_missing(str(tmp_path))
    rows = [QuotaChange("alice", "", {PRODUCE: 5.0}), QuotaChange("", "app", {PRODUCE: 5.0})]
    QuotaTable(str(tmp_path)).alter(rows, local_audit("test"))
    tables = TablesSettings(root=str(tmp_path))
    assert len(wanted_keys(Settings(tables=tables))) == 2
    chosen = Settings(tables=tables, sync=SyncSettings(users=("alice",)))
    assert wanted_keys(chosen) == {EntryKey("alice", "", PRODUCE)}


def test_quotas_of_others_measure_clients_too() -> None:
    held = {EntryKey(D, "", PRODUCE): 5.0, EntryKey("", D, PRODUCE): METERED, EntryKey("alice", "", FETCH): 5.0}
    assert [(one.by, one.entity) for one in measured(held)] == [
        ("user", "the default client-id"),
        ("", ""),
        ("", ""),
    ]


def test_an_import_leaves_it_out() -> None:
    quotas = [
        NativeQuota(pair(None, None), {PRODUCE: METERED, FETCH: 5.0}),
        NativeQuota(user(None), {REQUEST: METERED}),
        NativeQuota(user("alice"), {PRODUCE: METERED}),
    ]
    declared, left_out = imported(quotas, factor=2)
    assert {
        (one.user, one.client_id): {key: value for key, value in one.bounds.items() if value} for one in declared
    } == {
        (D, D): {FETCH: 10.0},
        ("alice", ""): {PRODUCE: 2 * METERED},
    }
    assert left_out == []
