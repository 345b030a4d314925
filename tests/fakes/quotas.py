"""The tables that operators edit, in memory: every version is kept. Edits take the time of a clock set by hand."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from unittest.mock import patch

import pyarrow as pa

from pipeline.tables.quotas import table as edited
from pipeline.tables.quotas.edit import QuotaValues
from pipeline.tables.quotas.table import (
    EditAudit,
    EditedTable,
    QuotaTable,
    QuotaTableState,
    State,
    TableEdit,
    TenantTable,
    TenantTableState,
    parted,
)
from schemas.arrow import arrow_schema
from tests.fakes.clock import ManualClock

Outcome = TypeVar("Outcome")


class _InMemory(EditedTable[State]):
    def __init__(self, clock: ManualClock, first: State) -> None:
        self.root = self.uri = "memory"  # type: ignore[misc]  # the base opens what is there
        self.states = [first]
        self._clock = clock

    def version(self) -> int:
        return len(self.states) - 1

    def read(self, version: int | None = None) -> State:
        return self.states[-1 if version is None else version]

    def _committed(self, attempt: Callable[[Any], Outcome]) -> Outcome:
        with patch.object(edited, "wall_ms", lambda: self._clock.wall_ms):
            return attempt(None)

    def _state(self, table: object) -> State:
        del table
        return self.states[-1]

    def _written(
        self, table: object, edit: TableEdit[State], rows: Sequence[QuotaValues], audit: EditAudit
    ) -> TableEdit[State]:
        del table, audit
        stored = pa.Table.from_pylist(list(rows), arrow_schema(self.kind.model)).to_pylist()
        plain = ({name: tuple(one) if isinstance(one, list) else one for name, one in row.items()} for row in stored)
        self.states.append(self._next(sorted(plain, key=self.kind.key)))
        return replace(edit, version=self.version())

    def _next(self, rows: list[dict[str, Any]]) -> State:
        raise NotImplementedError


class MemoryQuotas(_InMemory[QuotaTableState], QuotaTable):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock, QuotaTableState(0, (), "cluster", "enforce"))

    def _next(self, rows: list[dict[str, Any]]) -> QuotaTableState:
        quotas, forgiven = parted(rows)
        return replace(self.states[-1], version=len(self.states), rows=tuple(quotas), forgiven=forgiven)


class MemoryTenants(_InMemory[TenantTableState], TenantTable):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock, TenantTableState(0, ()))

    def _next(self, rows: list[dict[str, Any]]) -> TenantTableState:
        return TenantTableState(len(self.states), tuple(rows))
