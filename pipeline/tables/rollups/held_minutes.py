"""How long clients were held, minute by minute, computed from stored throttle records. No clock, no I/O.

A throttle holds its client from the instant at which its record was stored until its end, or until the next record of
the client was stored, whichever comes first:

    stored        throttle ├──────────────────────┤ end
    stored             renewed      ├──────────────────────────┤ end
    stored                               release    ┼
    held                   ├────────┼───────────────┤

So the time of a throttle is known when the record after it is known, and it is counted with that record. Each record is
counted once, whatever the pieces are in which the records come: the sum over all pieces is always the same.

If the wall clock is set back between two records, the first one counts as not held. The clock then shows the same
minutes twice, and a client may have been held for more than 60 s of one of them.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.names import ClientKey

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

MINUTE_MS: Final = 60_000
CLIENT: Final = ("cluster", *ClientKey._fields)
COLUMNS: Final = (
    *CLIENT,
    "quota_type",
    "action",
    "cause",
    "decision_id",
    "publish_seq",
    "throttle_time_ms",
    "throttled_until_ms",
    "quota_version",
)
"""The columns of `throttle_events` that are needed."""

_ADDED: Final = ("held_ms", "throttle_count", "renewal_count")
_GROUPS: Final = ("minute_start_ms", *CLIENT, "quota_type", "owner")


class Records:
    """Records of the throttle table, each client's together and in the order in which they were published.

    Args:
        before: The last record of each client so far, where that is a throttle; of `COLUMNS`.
        new: The records that follow, of `COLUMNS`.
        owners: A column for `before` and `new`, one after the other: who is responsible.
    """

    def __init__(self, before: pa.Table, new: pa.Table, owners: "pa.Array[Any]") -> None:
        both = pa.concat_tables([before.select(COLUMNS), new.select(COLUMNS)]).unify_dictionaries().combine_chunks()
        both = both.append_column("owner", owners)
        is_new = np.arange(both.num_rows) >= before.num_rows
        clients = _numbers(both)
        order = np.lexsort((both["publish_seq"].to_numpy(), clients))
        self._rows = both.take(pa.array(order))
        self._is_new: Flags = is_new[order]
        self._clients = clients[order]
        self._is_throttle: Flags = _equals(self._rows, "action", "throttle")
        self._until_ms: Ints = self._rows["throttled_until_ms"].to_numpy()
        self._stored_ms: Ints = self._until_ms - self._rows["throttle_time_ms"].to_numpy()

    def minutes(self) -> pa.Table:
        """What the new records add to each minute: `_GROUPS` and `_ADDED`, in no order. No row adds nothing."""
        held, begun, renewed = self._held(), *self._told()
        parts = [held, self._counted(begun, "throttle_count"), self._counted(renewed, "renewal_count")]
        added = pa.concat_tables(parts).unify_dictionaries()
        sums = [(name, "sum") for name in _ADDED]
        # In one thread, to leave the other cores to the micro-batch.
        grouped = added.group_by(list(_GROUPS), use_threads=False).aggregate(sums)
        return grouped.rename_columns([*_GROUPS, *_ADDED])

    def running(self) -> pa.Table:
        """The last record of each client, where that is a throttle; of `COLUMNS`."""
        is_last = np.append(self._clients[1:] != self._clients[:-1], True)[: len(self._clients)]
        return self._rows.filter(pa.array(is_last & self._is_throttle)).select(COLUMNS)

    def _follows(self) -> Flags:
        """Which records follow a throttle of the same client."""
        follows = np.zeros(len(self._clients), np.bool_)
        follows[1:] = (self._clients[1:] == self._clients[:-1]) & self._is_throttle[:-1]
        return follows

    def _told(self) -> tuple[Ints, Ints]:
        """The places of the new throttles that began one, and of those that gave a running one another end."""
        decisions = _codes(self._rows["decision_id"])
        goes_on = self._follows()
        goes_on[1:] &= decisions[1:] == decisions[:-1]
        begins = _equals(self._rows, "cause", "violation") & ~goes_on
        new = self._is_new & self._is_throttle
        return np.flatnonzero(new & begins), np.flatnonzero(new & ~begins)

    def _held(self) -> pa.Table:
        after = np.flatnonzero(self._follows())
        throttles = after - 1
        from_ms = self._stored_ms[throttles]
        to_ms = np.minimum(self._until_ms[throttles], self._stored_ms[after])
        some = to_ms > from_ms  # also not if the clock was set back
        throttles, from_ms, to_ms = throttles[some], from_ms[some], to_ms[some]
        first, last = from_ms // MINUTE_MS, (to_ms - 1) // MINUTE_MS
        lengths = last - first + 1
        places = np.repeat(np.arange(len(throttles)), lengths)
        begins = np.cumsum(lengths) - lengths
        minutes_ms = (first[places] + np.arange(len(places)) - begins[places]) * MINUTE_MS
        held_ms = np.minimum(to_ms[places], minutes_ms + MINUTE_MS) - np.maximum(from_ms[places], minutes_ms)
        return self._added(throttles[places], minutes_ms, held_ms=held_ms)

    def _counted(self, places: Ints, name: str) -> pa.Table:
        minutes_ms = self._stored_ms[places] // MINUTE_MS * MINUTE_MS
        return self._added(places, minutes_ms, **{name: np.ones(len(places), np.int64)})

    def _added(self, places: Ints, minutes_ms: Ints, **figures: Ints) -> pa.Table:
        rows = self._rows.select(_GROUPS[1:]).take(pa.array(places))
        nothing = np.zeros(len(places), np.int64)
        columns = {"minute_start_ms": minutes_ms} | {name: figures.get(name, nothing) for name in _ADDED}
        for name, values in columns.items():
            rows = rows.append_column(name, pa.array(values, pa.int64()))
        return rows


def _numbers(rows: pa.Table) -> Ints:
    """A number for each row; equal exactly for rows of the same client."""
    numbers = np.zeros(rows.num_rows, np.int64)
    for name in CLIENT:
        codes = _codes(rows[name])
        # Numbered anew after each column, so that the product never becomes too large.
        _, numbers = np.unique(numbers * (int(codes.max(initial=0)) + 1) + codes, return_inverse=True)
    return numbers.astype(np.int64)


def _codes(column: "pa.ChunkedArray[Any]") -> Ints:
    """A number for each value of a text column without nulls; equal exactly for equal values."""
    whole = column.combine_chunks()
    encoded: Any = whole if pa.types.is_dictionary(whole.type) else whole.dictionary_encode()
    codes: Ints = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _equals(rows: pa.Table, name: str, text: str) -> Flags:
    found: Flags = np.asarray(rows[name].to_numpy(zero_copy_only=False) == text, np.bool_)
    return found
