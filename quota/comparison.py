"""Stored decisions compared with recomputed ones: which rows differ, and in which columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

KEY: Final = ("query_id", "batch_id", "broker_id", "user", "client_id", "quota_type", "mode")
"""The columns that identify a row of `decisions`."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision that differs from the one its usage and quotas lead to.

    Attributes:
        key: the columns of `KEY` by name.
        columns: (stored, recomputed) of every column that differs, by name; empty if one of the two rows is missing.
        is_stored: there is a stored row.
        is_recomputed: there is a recomputed row.
    """

    key: dict[str, Any]
    columns: dict[str, tuple[Any, Any]]
    is_stored: bool = True
    is_recomputed: bool = True


def differences(stored: pa.Table, recomputed: pa.Table) -> list[Difference]:
    """Every difference between two tables of decisions, in the order of their keys.

    Values are compared exactly, floating-point numbers too: the same arithmetic on the same numbers gives the same.

    Args:
        stored: columns `KEY` and those of `recomputed`; others are ignored.
        recomputed: columns `KEY` and any more.
    """
    names = recomputed.column_names
    stored, recomputed = (_ordered(table.select(names)) for table in (stored, recomputed))
    if stored.equals(recomputed):
        return []
    left, right = (_by_key(table.to_pylist()) for table in (stored, recomputed))
    found = []
    for key in sorted({*left, *right}, key=_sortable):
        one, other = left.get(key), right.get(key)
        named = dict(zip(KEY, key, strict=True))
        if one is None or other is None:
            found.append(Difference(named, {}, one is not None, other is not None))
        elif one != other:
            columns = {name: (one[name], other[name]) for name in names if one[name] != other[name]}
            found.append(Difference(named, columns))
    return found


def _ordered(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in KEY]).combine_chunks()


def _by_key(rows: Sequence[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row[name] for name in KEY): row for row in rows}


def _sortable(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return key[1], key[0], *key[2:]
