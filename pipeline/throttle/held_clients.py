"""What is remembered of the clients that are held, by columns: one row per client, found by its name."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.throttle.publications import (
    CLIENTS,
    NO_BOUND,
    NO_LEVEL,
    Ints,
    bounds_of,
    int64s,
    levels_of,
    types_of,
)
from quota.decisions import names_of
from quota.entity import QUOTA_TYPES
from quota.key_index import KeyIndex
from quota.names import Seeds
from quota.usage import EntityNames

HELD: Final = pa.schema(
    [
        *CLIENTS,
        ("quota_type", pa.string()),
        ("sensor_user", pa.string()),
        ("sensor_client_id", pa.string()),
        ("bound", pa.float64()),
        ("level", pa.int64()),
        ("decision_id", pa.string()),
        ("end_ms", pa.int64()),
        ("due_ms", pa.int64()),
    ]
)
"""Running throttles: of the last record published for each the quota type, its sensor, bound (null: none) and level
(null: not known), the decision that began it, its end on the steady clock, and when its look or its end is due there.
"""

_TEXTS: Final = (*CLIENTS.names, "decision_id")
_COLUMNS: Final = {
    "quota_type": np.int64,
    "has_user": np.bool_,
    "has_client_id": np.bool_,
    "bound": np.float64,
    "level": np.int64,
    "end_ms": np.int64,
    "due_ms": np.int64,
}


class HeldClients:
    """Rows of `HELD` by the number of their client. A client keeps its number until `keep`. One caller at a time.

    A sensor is kept as two flags: each of its parts is the client's own name, or "".
    """

    def __init__(self) -> None:
        self._seeds = Seeds.draw()
        self._index = KeyIndex()
        self._columns: dict[str, NDArray[Any]] = {name: np.zeros(0, kind) for name, kind in _COLUMNS.items()}
        self._columns |= {name: np.zeros(0, np.object_) for name in _TEXTS}

    def __len__(self) -> int:
        """The number of numbers in use."""
        return len(self._index)

    def find(self, clients: pa.Table) -> Ints:
        """The number of each client, int64[n]; −1 for one without a number."""
        return self._index.find(self._keys(clients))

    def write(self, throttles: pa.Table) -> Ints:
        """Set the rows of these clients, the last one where there are several; returns their numbers, int64[n]."""
        numbers, first_rows = self._index.add(self._keys(throttles))
        new = slice(len(self) - len(first_rows), len(self))
        self._grow(len(self))
        columns = self._columns
        if len(first_rows):
            rows = pa.array(first_rows)
            for name in CLIENTS.names:
                columns[name][new] = throttles[name].take(rows).to_pylist()
        columns["decision_id"][numbers] = throttles["decision_id"].to_pylist()
        columns["quota_type"][numbers] = types_of(throttles)
        columns["has_user"][numbers] = pc.not_equal(throttles["sensor_user"], "").to_numpy()
        columns["has_client_id"][numbers] = pc.not_equal(throttles["sensor_client_id"], "").to_numpy()
        columns["bound"][numbers] = bounds_of(throttles)
        columns["level"][numbers] = levels_of(throttles)
        columns["end_ms"][numbers] = int64s(throttles, "end_ms")
        columns["due_ms"][numbers] = int64s(throttles, "due_ms")
        return numbers

    def read(self, numbers: Ints) -> pa.Table:
        """The rows of some clients, in the order given."""
        taken = {name: column[numbers] for name, column in self._columns.items()}
        texts = {name: pa.array(taken[name].tolist(), pa.string()) for name in _TEXTS}
        columns = {
            **texts,
            "quota_type": names_of(QUOTA_TYPES, taken["quota_type"]),
            "sensor_user": pc.if_else(pa.array(taken["has_user"]), texts["user"], ""),
            "sensor_client_id": pc.if_else(pa.array(taken["has_client_id"]), texts["client_id"], ""),
            "bound": pa.array(taken["bound"], mask=taken["bound"] == NO_BOUND),
            "level": pa.array(taken["level"], mask=taken["level"] == NO_LEVEL),
            "end_ms": pa.array(taken["end_ms"]),
            "due_ms": pa.array(taken["due_ms"]),
        }
        return pa.Table.from_arrays([columns[name] for name in HELD.names], schema=HELD)

    def column(self, name: str, numbers: Ints) -> NDArray[Any]:
        """One column of `read`: end_ms or due_ms as int64[n], decision_id as object[n]."""
        column: NDArray[Any] = self._columns[name][numbers]
        return column

    def set_due(self, numbers: Ints, due_ms: Ints) -> None:
        """Change when the clients are due; no other column."""
        self._columns["due_ms"][numbers] = due_ms

    def keep(self, kept: Ints) -> None:
        """Forget all others. The clients get new numbers: the position of the old one in `kept`, which is ascending."""
        flags = np.zeros(len(self), np.bool_)
        flags[kept] = True
        self._index.keep(flags)
        self._columns = {name: column[kept] for name, column in self._columns.items()}

    def _keys(self, clients: pa.Table) -> Any:
        names = EntityNames(clients, has_brokers=True)
        return names.hashed(self._seeds).read(0, names.num_rows).entity_keys()

    def _grow(self, size: int) -> None:
        if size > len(self._columns["due_ms"]):
            room = size + size // 2
            self._columns = {name: _padded(column, room) for name, column in self._columns.items()}


def _padded(column: NDArray[Any], size: int) -> NDArray[Any]:
    grown = np.full(size, "" if column.dtype == np.object_ else 0, column.dtype)
    grown[: len(column)] = column
    return grown
