"""Random alterations, deletions, applied files and rollbacks of a real table, against a dictionary."""

import json
import tempfile
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from filelock import FileLock
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pipeline.errors import Conflict, Refused
from pipeline.tables.quotas import table as tables
from pipeline.tables.quotas.edit import QuotaChange, altered, validated
from pipeline.tables.quotas.files import applied, from_text, to_document
from pipeline.tables.quotas.history import differences, origin_of, versions
from pipeline.tables.quotas.table import QuotaTable
from quota.entity import QUOTA_TYPES
from quota.units import bound_mistake
from tests.pipeline.tables.factories import AUDIT, bound, quota_table
from tests.touched_tables import add_columns


@pytest.fixture
def table(tmp_path: Path) -> QuotaTable:
    return quota_table(tmp_path)


def rates(table: QuotaTable, version: int | None = None) -> dict[str, float]:
    return {row["user"]: row["producer_byte_rate"] for row in table.read(version).rows}


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


DAY_MS = 24 * 3_600_000


@pytest.mark.parametrize(("age_ms", "is_kept"), [(DAY_MS - 60_000, True), (DAY_MS + 1, False)])
def test_an_edit_keeps_what_was_forgiven_for_a_day(
    age_ms: int, is_kept: bool, table: QuotaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.commit(lambda rows: rows, AUDIT, forgives=[("alice", "")])
    before = table.read()
    monkeypatch.setattr(tables, "wall_ms", lambda: before.forgiven["alice", ""] + age_ms)
    assert table.alter([QuotaChange("bob", "", remove=True)], AUDIT) == before.version, "nothing has changed"
    table.alter([bound("bob", 2.0)], AUDIT)
    assert table.read().forgiven == (before.forgiven if is_kept else {})


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


def row(user: str, rate: float | None) -> dict[str, Any]:
    return {"user": user, "client_id": "", "producer_byte_rate": rate, "mode": "enforce"}


def test_an_entity_with_two_rows_is_refused_and_an_edit_of_it_leaves_one() -> None:
    twice = [row("alice", 1.0), row("alice", 2.0)]
    with pytest.raises(Refused, match="user-principal 'alice' has 2 rows, not one"):
        validated(twice)
    assert altered(twice, [bound("alice", 3.0)]) == [row("alice", 3.0)]
    assert altered(twice, [bound("bob", 3.0)])[:2] == twice, "of another entity both rows stay"


def test_a_fraction_is_refused_when_it_is_set_and_stays_when_it_is_stored() -> None:
    fraction = {**row("alice", 1.5)}
    with pytest.raises(Refused, match=r"producer_byte_rate cannot be a fractional value; got 1\.5"):
        validated([fraction])
    assert validated([fraction, row("bob", 1.0)], before=[fraction])[0]["producer_byte_rate"] == 1.5


names = st.sampled_from(["", "<default>", "alice", "b o,b=\"'é"])
entities = st.tuples(names, names).filter(any)
bounds = st.sampled_from([None, None, 1.0, 2.5e-7, 1024.0, 2.0**63, 0.0, 1.5, float("nan")])
labels = st.fixed_dictionaries(
    {}, optional={"mode": st.sampled_from(["enforce", "shadow", "exempt"]), "owner": st.sampled_from([None, "a"])}
)
values = st.fixed_dictionaries({}, optional=dict.fromkeys(QUOTA_TYPES, bounds))

Model = dict[tuple[str, str], dict[str, Any]]
UNSET: dict[str, Any] = {**dict.fromkeys(QUOTA_TYPES), "mode": "enforce", "owner": None, "note": None}


def is_refused(given: dict[str, Any]) -> bool:
    return any(given.get(name) is not None and bound_mistake(name, given[name]) for name in QUOTA_TYPES)


class QuotaEdits(RuleBasedStateMachine):
    """`model` is the table as a dictionary, `past` the dictionary at each version."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.table = quota_table(self.folder.name)
        self.model: Model = {}
        self.past: dict[int, Model] = {self.table.read().version: {}}
        self.forgiven: list[tuple[str, str]] = []
        self.forgiven_in: dict[int, tuple[str, str]] = {}

    def expect(self, model: Model, version: int) -> None:
        """Set the model after an edit. The version grows by one if anything has changed, else it stays."""
        newest = max(self.past)
        assert version == (newest if model == self.model else newest + 1)
        self.model = model
        self.past[version] = model

    @rule(entity=entities, values=values, labels=labels)
    def alter(self, entity: tuple[str, str], values: dict[str, Any], labels: dict[str, Any]) -> None:
        row = {**UNSET, **self.model.get(entity, {}), **values, **labels}
        goes = row["mode"] != "exempt" and all(row[name] is None for name in QUOTA_TYPES)
        change = QuotaChange(*entity, {**values, **labels})
        try:
            version = self.table.alter([change], AUDIT)
        except Refused:
            assert is_refused(values)
            return
        assert goes or not is_refused(values)
        rest = {key: old for key, old in self.model.items() if key != entity}
        self.expect(rest if goes else {**rest, entity: row}, version)

    @rule(entity=entities)
    def delete(self, entity: tuple[str, str]) -> None:
        version = self.table.alter([QuotaChange(*entity, remove=True)], AUDIT)
        self.expect({key: row for key, row in self.model.items() if key != entity}, version)

    @rule(entity=entities)
    def forgive(self, entity: tuple[str, str]) -> None:
        """What is forgiven is no quota, and stays with every edit. The last one is the latest by any clock."""
        version = self.table.commit(lambda rows: rows, AUDIT, forgives=[entity]).version
        assert version == max(self.past) + 1
        self.past[version] = self.model
        self.forgiven = [*(one for one in self.forgiven if one != entity), entity]
        self.forgiven_in[version] = entity

    @rule(declared=st.dictionaries(entities, st.tuples(values, labels), max_size=3), prune=st.booleans())
    def apply(self, declared: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]], prune: bool) -> None:
        file = [
            {"user": user, "client_id": client_id, **dict.fromkeys(QUOTA_TYPES), **v, **lb}
            for (user, client_id), (v, lb) in declared.items()
        ]
        try:
            version = self.table.commit(lambda rows: applied(rows, file, prune=prune), AUDIT).version
        except Refused:
            assert any(is_refused(v) for v, _ in declared.values())
            return
        kept = {} if prune else self.model
        named = {
            key: {**UNSET, **self.model.get(key, {}), **dict.fromkeys(QUOTA_TYPES), **v, **lb}
            for key, (v, lb) in declared.items()
        }
        self.expect({**kept, **named}, version)

    @rule(choice=st.integers(min_value=0))
    def roll_back(self, choice: int) -> None:
        target = sorted(self.past)[choice % len(self.past)]
        version = self.table.commit(lambda _: self.table.read(target).rows, AUDIT).version
        self.expect(self.past[target], version)

    @invariant()
    def the_table_is_the_model(self) -> None:
        if hasattr(self, "model"):
            stored = self.table.read()
            rows = stored.rows
            assert sorted(stored.forgiven, key=stored.forgiven.__getitem__) == self.forgiven
            found = {(row["user"], row["client_id"]): {name: row[name] for name in UNSET} for row in rows}
            assert found == self.model
            assert len(rows) == len(found)

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        bounded = [row for row in self.table.read().rows if row["mode"] == "exempt" or any(row[n] for n in QUOTA_TYPES)]
        text = json.dumps(to_document(bounded))
        assert applied(bounded, from_text(text), prune=True) == bounded, "an export reads back"
        for version in versions(self.table, 100):
            if entity := self.forgiven_in.get(version.commit.version):
                (change,) = version.changes
                assert (change.user, change.client_id, change.column) == (*entity, "forgiven_until_ms")
            elif version.commit.version in self.past and version.commit.version - 1 in self.past:
                rows = [
                    [{"user": user, "client_id": client_id, **row} for (user, client_id), row in self.past[at].items()]
                    for at in (version.commit.version - 1, version.commit.version)
                ]
                assert list(version.changes) == differences(*rows), "the history tells each step"
        self.folder.cleanup()


QuotaEditsTest = QuotaEdits.TestCase
QuotaEditsTest.settings = settings(max_examples=15, stateful_step_count=15)


def test_the_edit_that_set_a_bound_is_found_also_after_edits_of_other_entities(table: QuotaTable) -> None:
    first = table.alter([bound("alice", 1.0)], AUDIT)
    raised = table.alter([bound("alice", 2.0)], AUDIT)
    table.alter([bound("bob", 9.0)], AUDIT)
    newest = table.alter([QuotaChange("alice", "", {"consumer_byte_rate": 7.0})], AUDIT)
    origin = origin_of(table, newest, "alice", "", "producer_byte_rate")
    assert (origin.version, origin.before, origin.after, origin.is_exact) == (raised, 1.0, 2.0, True)
    assert origin.commit is not None
    assert origin.commit.audit == AUDIT
    new = origin_of(table, first, "alice", "", "producer_byte_rate")
    assert (new.version, new.before, new.after) == (first, None, 1.0), "later edits do not change it"
