"""Random alterations, deletions, applied files and rollbacks of a real table, against a dictionary."""

import json
import tempfile
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pipeline.errors import Refused
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.files import DeclaredQuota, applied, from_text, to_document
from pipeline.tables.quotas.history import differences, versions
from pipeline.tables.quotas.table import EditAudit, QuotaTable
from quota.entity import QUOTA_TYPES
from quota.units import bound_mistake

AUDIT = EditAudit(actor="carol", host="ops1", tool_version="0.1.0", reason="")

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

    @rule(declared=st.dictionaries(entities, st.tuples(values, labels), max_size=3), prune=st.booleans())
    def apply(self, declared: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]], prune: bool) -> None:
        file = [DeclaredQuota(*key, {**dict.fromkeys(QUOTA_TYPES), **v}, lb) for key, (v, lb) in declared.items()]
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
QuotaEditsTest.settings = settings(max_examples=25, stateful_step_count=15)
