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

from pipeline.errors import Conflict, Refused, TableMissing
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.quotas import table as tables
from pipeline.tables.quotas.edit import QuotaChange, altered, refuse_absent, validated
from pipeline.tables.quotas.files import applied, from_text, to_document
from pipeline.tables.quotas.history import differences, origin_of, versions
from pipeline.tables.quotas.table import EditAudit, QuotaTable
from quota.entity import QUOTA_TYPES
from quota.units import bound_mistake
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


def test_the_mode_is_a_property_with_a_version_of_its_own(table: QuotaTable) -> None:
    before = table.read()
    version = table.set_mode("shadow", AUDIT)
    after = table.read()
    assert (before.scope, before.mode, after.scope, after.mode) == ("cluster", "enforce", "cluster", "shadow")
    assert version == after.version == before.version + 1
    assert table.set_mode("shadow", AUDIT) == version
    assert table.read(before.version).mode == "enforce"


DAY_MS = 24 * 3_600_000


def test_a_forgiven_debt_is_in_the_history_and_in_no_quota(table: QuotaTable) -> None:
    table.alter([bound("alice", 1.0), bound("bob", 2.0)], AUDIT)
    before = table.read()
    forgiven = table.commit(lambda rows: rows, AUDIT, forgives=[("alice", ""), ("carol", "etl")])
    after = table.read()
    assert forgiven.version == before.version + 1
    assert after.rows == before.rows
    assert to_document(after.rows) == to_document(before.rows)
    assert [*after.forgiven] == [("alice", ""), ("carol", "etl")]
    newest = next(iter(versions(table, 1)))
    assert [(one.action, one.user, one.column, one.old) for one in newest.changes] == [
        ("alter", "alice", "forgiven_until_ms", None),
        ("add", "carol", "forgiven_until_ms", None),
    ]
    again = table.commit(lambda rows: rows, AUDIT, forgives=[("alice", "")])
    assert table.read(again.version).forgiven["alice", ""] > after.forgiven["alice", ""], "it is forgiven once more"
    forgiven = table.commit(lambda rows: rows, AUDIT, forgives=[("bob", "etl")])
    *earlier, last = sorted(table.read(forgiven.version).forgiven.values())
    assert max(earlier) < last, "also by a clock that is behind"


@pytest.mark.parametrize(
    "edit",
    [
        lambda rows: applied(rows, [], prune=True),
        lambda rows: altered(rows, [QuotaChange("alice", "", remove=True)]),
        lambda rows: altered(rows, [bound("alice", 5.0)]),
        lambda _: [{"user": "alice", "client_id": "", "producer_byte_rate": 1.0}],
    ],
    ids=["prune", "delete", "alter", "rollback"],
)
@pytest.mark.parametrize(("age_ms", "is_kept"), [(DAY_MS - 60_000, True), (DAY_MS + 1, False)])
def test_every_edit_keeps_what_was_forgiven_for_a_day(
    edit: Any, age_ms: int, is_kept: bool, table: QuotaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.alter([bound("alice", 1.0), bound("bob", 2.0)], AUDIT)
    table.commit(lambda rows: rows, AUDIT, forgives=[("alice", ""), ("carol", "etl")])
    forgiven = table.read().forgiven
    monkeypatch.setattr(tables, "wall_ms", lambda: forgiven["alice", ""] + age_ms)
    version = table.alter([bound("bob", 2.0)], AUDIT)
    assert table.read(version).forgiven == forgiven, "an edit that changes nothing is none"
    table.commit(edit, AUDIT)
    assert table.read().forgiven == (forgiven if is_kept else {})
    assert {one.column for one in next(iter(versions(table, 1))).changes}.isdisjoint({"forgiven_until_ms"})


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


def row(user: str, rate: float | None) -> dict[str, Any]:
    return {"user": user, "client_id": "", "producer_byte_rate": rate, "mode": "enforce"}


def test_an_entity_with_two_rows_is_refused() -> None:
    with pytest.raises(Refused, match="user-principal 'alice' has 2 rows, not one"):
        validated([row("alice", 1.0), row("alice", 2.0)])


def test_an_edit_of_an_entity_with_two_rows_leaves_one() -> None:
    rows = altered([row("alice", 1.0), row("alice", 2.0)], [QuotaChange("alice", "", {"producer_byte_rate": 3.0})])
    assert rows == [row("alice", 3.0)]


def test_an_edit_keeps_both_rows_of_another_entity_that_has_two() -> None:
    rows = altered([row("alice", 1.0), row("alice", 2.0)], [QuotaChange("bob", "", {"producer_byte_rate": 3.0})])
    assert [r["user"] for r in rows] == ["alice", "alice", "bob"]


def test_a_fraction_is_refused_when_it_is_set_and_stays_when_it_is_stored() -> None:
    fraction = {**row("alice", 1.5)}
    with pytest.raises(Refused, match=r"producer_byte_rate cannot be a fractional value; got 1\.5"):
        validated([fraction])
    assert validated([fraction, row("bob", 1.0)], before=[fraction])[0]["producer_byte_rate"] == 1.5


def test_what_is_not_set_can_not_be_removed() -> None:
    rows = [row("alice", 1.0)]
    refuse_absent(rows, "alice", "", ["producer_byte_rate"])
    for columns, named in ((["owner", "producer_byte_rate", "mode"], "owner,mode"), (["note"], "note")):
        with pytest.raises(Refused, match=rf"Invalid config\(s\): {named}\."):
            refuse_absent(rows, "alice", "", columns)
    with pytest.raises(Refused):
        refuse_absent(rows, "bob", "", ["producer_byte_rate"])


UNSAID = EditAudit(actor="carol", host="ops1", tool_version="0.1.0", reason="")

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
        create_missing(self.folder.name, [TABLES["quotas"]])
        self.table = QuotaTable(self.folder.name)
        self.model: Model = {}
        self.past: dict[int, Model] = {self.table.read().version: {}}

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
            version = self.table.alter([change], UNSAID)
        except Refused:
            assert is_refused(values)
            return
        assert goes or not is_refused(values)
        rest = {key: old for key, old in self.model.items() if key != entity}
        self.expect(rest if goes else {**rest, entity: row}, version)

    @rule(entity=entities)
    def delete(self, entity: tuple[str, str]) -> None:
        version = self.table.alter([QuotaChange(*entity, remove=True)], UNSAID)
        self.expect({key: row for key, row in self.model.items() if key != entity}, version)

    @rule(declared=st.dictionaries(entities, st.tuples(values, labels), max_size=3), prune=st.booleans())
    def apply(self, declared: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]], prune: bool) -> None:
        file = [
            {"user": user, "client_id": client_id, **dict.fromkeys(QUOTA_TYPES), **v, **lb}
            for (user, client_id), (v, lb) in declared.items()
        ]
        try:
            version = self.table.commit(lambda rows: applied(rows, file, prune=prune), UNSAID).version
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
        version = self.table.commit(lambda _: self.table.read(target).rows, UNSAID).version
        self.expect(self.past[target], version)

    @invariant()
    def the_table_is_the_model(self) -> None:
        if hasattr(self, "model"):
            rows = self.table.read().rows
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
            if version.commit.version in self.past and version.commit.version - 1 in self.past:
                rows = [
                    [{"user": user, "client_id": client_id, **row} for (user, client_id), row in self.past[at].items()]
                    for at in (version.commit.version - 1, version.commit.version)
                ]
                assert list(version.changes) == differences(*rows), "the history tells each step"
        self.folder.cleanup()


QuotaEditsTest = QuotaEdits.TestCase
QuotaEditsTest.settings = settings(max_examples=15, stateful_step_count=15)


def change(user: str, **bounds: float | None) -> QuotaChange:
    return QuotaChange(user, "", bounds)


def test_the_edit_that_set_a_bound_is_found_also_after_edits_of_other_entities(table: QuotaTable) -> None:
    first = table.alter([change("alice", producer_byte_rate=1.0)], AUDIT)
    raised = table.alter([change("alice", producer_byte_rate=2.0)], AUDIT)
    table.alter([change("bob", producer_byte_rate=9.0)], AUDIT)
    newest = table.alter([change("alice", consumer_byte_rate=7.0)], AUDIT)
    origin = origin_of(table, newest, "alice", "", "producer_byte_rate")
    assert (origin.version, origin.before, origin.after, origin.is_exact) == (raised, 1.0, 2.0, True)
    assert origin.commit is not None
    assert origin.commit.audit == AUDIT
    new = origin_of(table, first, "alice", "", "producer_byte_rate")
    assert (new.version, new.before, new.after) == (first, None, 1.0), "later edits do not change it"
