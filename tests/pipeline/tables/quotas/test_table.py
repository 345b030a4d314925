"""Random alterations, deletions, applied files and rollbacks of a real table, against a dictionary."""

import json
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from pipeline.tables.quotas.edit import QUOTA_ROWS, QuotaChange, validated, with_changes
from pipeline.tables.quotas.files import applied, from_text, to_document
from pipeline.tables.quotas.history import differences, origin_of, versions
from pipeline.tables.quotas.table import EditedTable, QuotaTable, RowsChanger, TenantTable
from quota.entity import QUOTA_TYPES
from quota.units import bound_mistake
from schemas.arrow import arrow_schema
from tests.fakes.clock import ManualClock
from tests.fakes.quotas import MemoryQuotas, MemoryTenants
from tests.pipeline.tables.factories import AUDIT, bound, new_table, quota_table, tenant
from tests.touched_tables import add_columns


@pytest.fixture
def table(tmp_path: Path) -> QuotaTable:
    return quota_table(tmp_path)


# The mechanism, which both tables have.


def quota(user: str, rate: float | None) -> dict[str, Any]:
    return {**dict.fromkeys(QUOTA_ROWS.columns), "user": user, "client_id": "", "mode": "enforce", RATE: rate}


RATE = "producer_byte_rate"
TABLES: dict[str, tuple[type[EditedTable[Any]], Callable[[str, float | None], dict[str, Any]]]] = {
    "quotas": (QuotaTable, quota),
    "tenants": (TenantTable, tenant),
}


@dataclass
class Edited:
    """A table of one of the two kinds, with a bound for each name."""

    name: str
    root: Path
    in_memory: EditedTable[Any] | None = None

    def open(self, lock_timeout_seconds: float = 10.0) -> EditedTable[Any]:
        if self.in_memory is not None:
            return self.in_memory
        return TABLES[self.name][0](str(self.root), lock_timeout_seconds)

    @property
    def key(self) -> str:
        return self.open().kind.keys[0]

    def row(self, name: str, rate: float | None) -> dict[str, Any]:
        return TABLES[self.name][1](name, rate)

    def setting(self, rates: Mapping[str, float | None]) -> RowsChanger:
        """A change that sets the bounds of some names, and removes those with None."""

        def change(rows: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
            kept = {row[self.key]: row for row in rows} | {name: self.row(name, rate) for name, rate in rates.items()}
            return [kept[name] for name in sorted(kept) if rates.get(name, 1.0) is not None]

        return change

    def set(self, **rates: float | None) -> int:
        return self.open().commit(self.setting(rates), AUDIT).version

    def rates(self) -> dict[str, float]:
        return {row[self.key]: row[RATE] for row in self.open().read().rows}


@pytest.fixture(params=TABLES)
def edited(request: pytest.FixtureRequest, tmp_path: Path) -> Edited:
    new_table(tmp_path, request.param)
    return Edited(request.param, tmp_path)


@pytest.fixture(params=["quotas", "tenants", "memory quotas", "memory tenants"])
def edited_or_fake(request: pytest.FixtureRequest, tmp_path: Path) -> Edited:
    """A table, or what stands for it in jobs by hand."""
    place, _, name = request.param.rpartition(" ")
    if not place:
        new_table(tmp_path, name)
        return Edited(name, tmp_path)
    return Edited(name, tmp_path, (MemoryQuotas if name == "quotas" else MemoryTenants)(ManualClock()))


def test_an_edit_is_stored_in_order_as_the_next_version_and_old_ones_stay(edited_or_fake: Edited) -> None:
    edited, table = edited_or_fake, edited_or_fake.open()
    first = table.version()
    unordered = [edited.row("bob", 2.0), edited.row("alice", 1.0)]
    assert table.commit(lambda _: unordered, AUDIT).version == table.version() == first + 1
    assert edited.set(alice=1.0) == first + 1, "nothing has changed"
    edited.set(alice=3.0, bob=None)
    read = [[row[edited.key] for row in table.read(first + number).rows] for number in range(3)]
    assert read == [[], ["alice", "bob"], ["alice"]]
    assert table.read() == table.read(first + 2)
    assert table.read().rows == (edited.row("alice", 3.0),)


def test_a_refused_edit_changes_nothing(edited_or_fake: Edited) -> None:
    edited, table = edited_or_fake, edited_or_fake.open()
    version = edited.set(alice=1.0)
    with pytest.raises(Refused, match=r"producer_byte_rate cannot be a fractional value; got 1\.5"):
        edited.set(alice=1.5)
    assert (table.version(), edited.rates()) == (version, {"alice": 1.0})


@pytest.mark.parametrize("in_memory", [False, True])
def test_what_is_forgiven_is_a_version_without_a_change_of_rows(in_memory: bool, tmp_path: Path) -> None:
    table = MemoryQuotas(ManualClock()) if in_memory else quota_table(tmp_path)
    version = table.alter([bound("alice", 1.0)], AUDIT)
    before = table.read()
    assert table.commit(lambda rows: rows, AUDIT, forgives=[("bob", "")]).version == version + 1
    assert (table.read().rows, list(table.read().forgiven)) == (before.rows, [("bob", "")])
    table.alter([QuotaChange("alice", "", remove=True)], AUDIT)
    assert (table.read().rows, list(table.read().forgiven)) == ((), [("bob", "")])


def test_columns_that_others_have_added_keep_their_values_and_are_null_in_new_rows(edited: Edited) -> None:
    edited.set(alice=1.0, bob=1.0, carol=1.0)
    table = edited.open()
    add_columns(table.uri)
    stored = DeltaTable(table.uri)
    at = datetime(2026, 1, 2, 3, 4, 5, 678, UTC)
    values = {"team": "red", "seen": at, "contact": {"mail": ["a@b", None]}}
    others = [dict.fromkeys(values), values, dict.fromkeys(values) | {"team": "blue"}]
    rows = [{**row, **other} for row, other in zip(table.read().rows, others, strict=True)]
    write_deltalake(stored, pa.Table.from_pylist(rows, pa.schema(stored.schema())), mode="overwrite")
    version = edited.set(aaron=1.0, bob=2.0, carol=None)
    assert edited.rates() == {"aaron": 1.0, "alice": 1.0, "bob": 2.0}
    found = DeltaTable(table.uri).to_pyarrow_table().sort_by(edited.key).select(list(values)).to_pylist()
    assert found == [others[0], others[0], values]
    assert edited.set(bob=2.0) == version, "nothing has changed"
    assert "team" not in table.read().rows[0]


def test_an_edit_waits_for_the_lock_and_gives_up_in_time(edited: Edited) -> None:
    hasty = edited.open(lock_timeout_seconds=0.05)
    with (
        FileLock(edited.root / f"{edited.name}.lock"),
        pytest.raises(Conflict, match=rf"{edited.name}\.lock is held by another edit"),
    ):
        hasty.commit(edited.setting({"alice": 1.0}), AUDIT)
    assert hasty.commit(edited.setting({"alice": 1.0}), AUDIT).version == hasty.read().version


def test_edits_made_at_the_same_time_are_all_stored(edited: Edited) -> None:
    threads = [threading.Thread(target=edited.set, kwargs={f"u{number}": 1.0}) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(edited.rates()) == [f"u{number}" for number in range(8)]


def test_an_edit_for_another_version_is_a_conflict(edited_or_fake: Edited) -> None:
    edited, table = edited_or_fake, edited_or_fake.open()
    version = edited.set(alice=1.0)
    with pytest.raises(Conflict, match=f"is at version {version}, not at {version - 1}") as refused:
        table.commit(lambda _: [], AUDIT, if_version=version - 1)
    assert refused.value.exit_code == 4
    assert refused.value.fix.endswith(f"kquota {edited.name} diff {version - 1} {version}")
    assert (table.version(), edited.rates()) == (version, {"alice": 1.0})
    assert table.commit(lambda _: [], AUDIT, if_version=version).version == version + 1


def test_a_plan_is_what_the_commit_would_be_and_writes_nothing(edited: Edited) -> None:
    version, table = edited.set(alice=1.0), edited.open()
    change = edited.setting({"alice": 2.0, "bob": 3.0})
    plan = table.plan(change)
    assert (plan.version, plan.has_changed, table.version()) == (version, True, version)
    assert table.commit(change, AUDIT).rows == plan.rows == table.read().rows


def test_each_version_tells_who_why_and_what(edited: Edited) -> None:
    edited.set(alice=1.0)
    edited.set(alice=2.0, bob=1.0)
    newest, first, *_ = versions(edited.open(), 10)
    assert newest.commit.audit == first.commit.audit == AUDIT
    assert ("alter", RATE, 1.0, 2.0) in [(one.action, one.column, one.old, one.new) for one in newest.changes]
    assert {one.key[0]: one.action for one in newest.changes} == {"alice": "alter", "bob": "add"}
    assert {"mode", "lend", "client_id_patterns", "note"}.isdisjoint(one.column for one in newest.changes), "not set"


def test_a_row_that_is_there_twice_is_refused_and_an_edit_of_it_leaves_one(edited: Edited) -> None:
    kind, alice, bob = edited.open().kind, edited.row("alice", 1.0), edited.row("bob", 1.0)
    with pytest.raises(Refused, match="'alice' has 2 rows, not one"):
        validated([alice, alice], kind=kind)
    left = with_changes(kind, [alice, alice, bob], [(kind.key(alice), lambda row: row)])
    assert left == [alice, bob]
    assert with_changes(kind, [alice, alice], [(kind.key(bob), lambda _: bob)]) == [alice, alice, bob]


def test_a_fraction_is_refused_when_it_is_set_and_stays_when_it_is_stored(edited: Edited) -> None:
    table, fraction = edited.open(), edited.row("alice", 1.5)
    schema = arrow_schema(table.kind.model)
    write_deltalake(DeltaTable(table.uri), pa.Table.from_pylist([fraction], schema=schema), mode="append")
    edited.set(bob=1.0)
    rows = table.read().rows
    edited.set(alice=None)
    with pytest.raises(Refused):
        table.commit(lambda _: rows, AUDIT)
    table.commit(lambda _: rows, AUDIT, once_stored=rows)
    assert edited.rates() == {"alice": 1.5, "bob": 1.0}


# The table `quotas`.


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


names = st.sampled_from(["", "<default>", "alice", "b o,b=\"'é"])
entities = st.tuples(names, names).filter(any)
bounds = st.sampled_from([None, None, 1.0, 2.5e-7, 1024.0, 2.0**63, 0.0, 1.5, float("nan")])
labels = st.fixed_dictionaries(
    {}, optional={"mode": st.sampled_from(["enforce", "shadow", "exempt"]), "owner": st.sampled_from([None, "a"])}
)
values = st.fixed_dictionaries({}, optional=dict.fromkeys(QUOTA_TYPES, bounds))

# A file cannot declare a quota without any.
declarations = st.tuples(values, labels).filter(
    lambda one: any(bound is not None for bound in one[0].values()) or one[1].get("mode") == "exempt"
)

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

    @rule(declared=st.dictionaries(entities, declarations, max_size=3), prune=st.booleans())
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
        assert applied(bounded, from_text(text).quotas or (), prune=True) == bounded, "an export reads back"
        for version in versions(self.table, 100):
            if entity := self.forgiven_in.get(version.commit.version):
                (change,) = version.changes
                assert (*change.key, change.column) == (*entity, "forgiven_until_ms")
            elif version.commit.version in self.past and version.commit.version - 1 in self.past:
                before, after = [
                    [{"user": user, "client_id": client_id, **row} for (user, client_id), row in self.past[at].items()]
                    for at in (version.commit.version - 1, version.commit.version)
                ]
                assert list(version.changes) == differences(before, after), "the history tells each step"
        self.folder.cleanup()


QuotaEditsTest = QuotaEdits.TestCase
QuotaEditsTest.settings = settings(max_examples=10, stateful_step_count=15)


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
