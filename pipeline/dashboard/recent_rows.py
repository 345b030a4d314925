"""The newest rows of a table in memory. Pure: rows come in, and rows of a client come out.

The job writes a file or two per second, and its upkeep merges them when there are two hundred. To find a client in
those of the last minutes takes a quarter of a second; to find it here takes a millisecond.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_TIME: Final = "evaluated_at_ms"
_LONGEST_MS: Final = 1_200_000
_BLOCK_ROWS: Final = 8_192


@dataclass(frozen=True, slots=True)
class _Block:
    """Some rows, and the hashes of their names: 16 bytes a row, however long the names are.

    Python's hashes have 64 bits and a secret of the process. That two of a million names have the same one happens
    once in ten million processes.
    """

    rows: pa.Table
    users: NDArray[np.int64]
    client_ids: NDArray[np.int64]
    largest_key: int


@dataclass(frozen=True, slots=True)
class RecentRows:
    """Every row of a table whose key is at `begin` or later. Immutable, so any thread may read it.

    Attributes:
        key: An INT64 column whose value does not go back from commit to commit.
        begin: Inclusive. Rows before it must be read from the table.
        blocks: The rows, oldest first; the oldest may have rows before `begin`, which do not count.
    """

    key: str
    begin: int
    blocks: tuple[_Block, ...] = ()

    def __len__(self) -> int:
        """How many rows are in memory."""
        return sum(block.rows.num_rows for block in self.blocks)

    def with_rows(self, rows: pa.Table, columns: Sequence[str], most_rows: int) -> "RecentRows":
        """These rows and newer ones, without the oldest ones where it would be too many, or more than 20 minutes.

        Args:
            rows: With `user`, `client_id`, and all of `columns`.
            columns: Which ones are kept; among them the key and `evaluated_at_ms`.
            most_rows: So many are kept, and at most 8192 more.
        """
        if not rows.num_rows:
            return self
        users, client_ids = (_hashes(rows[name]) for name in ("user", "client_id"))
        new = _Block(_copied(rows.select(list(columns))), users, client_ids, int(_ints(rows[self.key]).max()))
        last = self.blocks[-1] if self.blocks else None
        is_small = last is not None and last.rows.num_rows < _BLOCK_ROWS
        joined = (*self.blocks[:-1], _joined(last, new)) if last is not None and is_small else None
        begin, blocks = self.begin, joined or (*self.blocks, new)
        held, newest_ms = sum(block.rows.num_rows for block in blocks), _newest_ms(blocks[-1])
        while len(blocks) > 1 and (held > most_rows or _newest_ms(blocks[0]) < newest_ms - _LONGEST_MS):
            begin, held = blocks[0].largest_key + 1, held - blocks[0].rows.num_rows
            blocks = blocks[1:]
        return RecentRows(self.key, begin, blocks)

    def where(self, names: tuple[str | None, str | None], time: str, since_ms: int, until_ms: int) -> pa.Table:
        """The rows of a client in a span, in no order, with the columns that are kept.

        Args:
            names: User and client-id; None = any.
            time: A column in epoch ms.
            since_ms: Begin of the span by that column, inclusive.
            until_ms: Its end, exclusive.
        """
        found = []
        for block in self.blocks:
            at_ms = _ints(block.rows[time])
            is_wanted = (at_ms >= since_ms) & (at_ms < until_ms) & (_ints(block.rows[self.key]) >= self.begin)
            for name, hashes in zip(names, (block.users, block.client_ids), strict=True):
                if name is not None:
                    is_wanted &= hashes == hash(name)
            places = np.flatnonzero(is_wanted)
            if len(places):
                found.append(block.rows.take(_int_array(places)))
        if found:
            return pa.concat_tables(found)
        return self.blocks[0].rows.slice(0, 0) if self.blocks else pa.table({})


def _joined(first: _Block, second: _Block) -> _Block:
    return _Block(
        pa.concat_tables([first.rows, second.rows]).combine_chunks(),
        np.concatenate([first.users, second.users]),
        np.concatenate([first.client_ids, second.client_ids]),
        max(first.largest_key, second.largest_key),
    )


def _copied(rows: pa.Table) -> pa.Table:
    """The same rows without the buffers of the query, which are several times as large."""
    return rows.take(_int_array(np.arange(rows.num_rows)))


def _int_array(values: NDArray[np.int64]) -> pa.Array:
    # Not by pa.array, which imports pandas to look at its values.
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values.astype(np.int64))])


def _newest_ms(block: _Block) -> int:
    return int(_ints(block.rows[_TIME]).max())


def _hashes(names: "pa.ChunkedArray") -> NDArray[np.int64]:
    return np.fromiter(map(hash, names.to_pylist()), np.int64, len(names))


def _ints(column: "pa.ChunkedArray") -> NDArray[np.int64]:
    return np.asarray(column.to_numpy(), dtype=np.int64)
