"""`kquota meter enable|disable|status` on a real broker."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.brokers.metering import measured, wanted_keys, write
from pipeline.brokers.native import NativeQuota, NativeQuotas, imported
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import Refused
from pipeline.settings.model import KafkaSettings, Settings, SyncSettings, TablesSettings
from pipeline.tables.layout import create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable, local_audit
from quota.broker_levels.entries import METERED, METERED_BY_USER, EntryKey
from quota.entity import QUOTA_TYPES
from tests.pipeline.brokers.quota_broker import await_values, client, pair, user
from tests.pipeline.cli.running import kquota, new_tables
from tests.waiting import wait_until

D = "<default>"
PRODUCE, FETCH, REQUEST = QUOTA_TYPES


class Metered:
    """A broker, and tables that may be there."""

    def __init__(self, broker: EmbeddedBroker, root: Path) -> None:
        self._address = "--bootstrap-server", broker.bootstrap_servers
        self._tables = "--tables", str(root)

    def run(self, verb: str, *options: str) -> Any:
        """The rows of what a command has written, or would write."""
        tables = () if verb == "status" else self._tables
        answer = kquota("meter", verb, *self._address, *options, *tables, "-o", "json")
        assert answer.exit_code == 0, answer.stderr
        return json.loads(answer.stdout)

    def by_type(self) -> list[str]:
        return [row["by"] for row in self.run("status")]

    def planned(self) -> set[tuple[str, str, str, float]]:
        rows = self.run("enable")
        return {(row["quota_type"], row["user"], row["client_id"], row["new"]) for row in rows if row["new"]}

    def doctor(self) -> str:
        return kquota("doctor", *self._address, *self._tables).stdout


@pytest.fixture
def metered(quota_broker: EmbeddedBroker, tmp_path: Path) -> Metered:
    return Metered(quota_broker, tmp_path / "tables")


@pytest.mark.broker
def test_it_is_written_with_yes_where_it_hides_nothing_and_taken_away(native: NativeQuotas, metered: Metered) -> None:
    others: dict[Any, Any] = {client("app"): {PRODUCE: 5e6}, user("alice"): {FETCH: 7e6}}
    native.alter(others)
    await_values(native, others)
    of_client_ids = {**others, client(None): {PRODUCE: METERED}}
    by_user = {**of_client_ids, user(None): {FETCH: METERED_BY_USER, REQUEST: METERED_BY_USER}}
    by_pair = {**of_client_ids, pair(None, None): {FETCH: METERED, REQUEST: METERED}}
    for command, values, by in (
        (("enable",), others, ["", "", ""]),
        (("enable", "--yes"), by_user, ["client-id", "user", "user"]),
        (("enable", "--by", "pair", "--yes"), by_pair, ["client-id", "user and client-id", "user and client-id"]),
        (("disable", "--yes"), others, ["", "", ""]),
    ):
        assert metered.run(*command), command
        await_values(native, values)
        assert metered.by_type() == by
        if "--yes" in command:
            assert not metered.run(*command), "it is written already"


@pytest.mark.broker
@pytest.mark.parametrize("mode", ["enforce", "exempt"])
def test_a_row_of_a_client_id_needs_metering_by_pair_and_doctor_says_so(
    mode: str, native: NativeQuotas, metered: Metered, tmp_path: Path
) -> None:
    table = QuotaTable(new_tables(tmp_path / "tables"))
    assert metered.planned() == {(one, D, "", METERED_BY_USER) for one in QUOTA_TYPES}
    metered.run("enable", "--yes")
    await_values(native, {user(None): dict.fromkeys(QUOTA_TYPES, METERED_BY_USER)})
    assert " metering " not in metered.doctor()
    bounds: dict[str, Any] = {} if mode == "exempt" else {PRODUCE: 5.0}
    table.alter([QuotaChange("alice", "etl", {**bounds, "mode": mode})], local_audit("test"))
    types = [PRODUCE, FETCH, REQUEST] if mode == "exempt" else [PRODUCE]
    warning = f"quotas of client-ids are in the table, and brokers measure {', '.join(types)} by user"
    assert f"warn  metering  {warning}: such usage has no client-id. Fix: " in metered.doctor()
    assert metered.planned() == {(one, D, D, METERED) for one in types}
    metered.run("enable", "--yes")
    wait_until(lambda: " metering " not in metered.doctor(), "the broker to hear of it")


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
    assert [(one.by, one.entity) for one in measured(held)] == [("user", "the default client-id"), ("", ""), ("", "")]


def test_every_value_that_the_brokers_refuse_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {EntryKey(D, "", PRODUCE): "not allowed", EntryKey(D, D, FETCH): "no such thing"}
    monkeypatch.setattr(NativeQuotas, "make", lambda *_: refused)
    with pytest.raises(Refused, match=r"producer_byte_rate: not allowed; .* consumer_byte_rate: no such thing"):
        write(Settings(kafka=KafkaSettings(bootstrap_servers="nowhere:9092")), [])


def test_an_import_leaves_it_out() -> None:
    quotas = [
        NativeQuota(pair(None, None), {PRODUCE: METERED, FETCH: 5.0}),
        NativeQuota(user(None), {REQUEST: METERED, FETCH: METERED_BY_USER}),
        NativeQuota(user("alice"), {PRODUCE: METERED}),
    ]
    declared, left_out = imported(quotas, factor=2)
    assert {
        (one["user"], one["client_id"]): {name: one[name] for name in QUOTA_TYPES if one[name]} for one in declared
    } == {(D, D): {FETCH: 10.0}, ("alice", ""): {PRODUCE: 2 * METERED}}
    assert left_out == []
