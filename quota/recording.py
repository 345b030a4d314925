"""A batch of usage, summed per sensor and sample window, recorded in samples, and charged to buckets."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from quota.arrays import Floats, Ids, Ints
from quota.rates import (
    MAX_DEBT_BURSTS,
    MAX_DEBT_BURSTS_OF_GAP,
    Selection,
    amounts,
    at_places,
    saturated,
)
from quota.sensors import TypeSensors
from quota.usage import BLOCK_ROWS, Usage

Rows = slice | Ids

_EXACT_IN_FLOAT: Final = 1 << 53
_FEW: Final = 64
_ALL: Final = slice(None)


class SensorGroups:
    """Rows grouped by sensor. Each of the `count` sensors, ascending or a slice of all, has a place from 0 on."""

    def __init__(self, of_row: Ids, num_sensors: int) -> None:
        is_small = len(of_row) * _FEW < num_sensors
        if is_small:  # a window of late usage, of which there may be thousands
            ids, places_of_rows = np.unique(of_row, return_inverse=True)
        else:
            present = np.zeros(num_sensors, np.bool_)
            present[of_row] = True
            ids, places_of_rows = present.nonzero()[0], of_row
        self.count = len(ids)
        self.sensors: Selection = ids
        self._place = places_of_rows
        if self.count == num_sensors:
            self.sensors = slice(0, num_sensors)
        elif not is_small:
            places = np.empty(num_sensors, np.int64)
            places[ids] = np.arange(self.count)
            self._place = places[of_row]
        self._each_once = self.count == len(of_row)

    def sums(self, values: Ints) -> Ints:
        """The sum of the values of each sensor's rows, int64[m], at most 2^63 − 1."""
        if self._each_once:
            sums = np.empty(self.count, np.int64)
            sums[self._place] = values
            return sums
        if int(values.max()) * len(values) < _EXACT_IN_FLOAT:
            return np.bincount(self._place, values, self.count).astype(np.int64)
        sums = np.zeros(self.count, np.int64)
        np.add.at(sums, self._place, values)
        return saturated(sums, np.bincount(self._place, values, self.count).astype(np.float64))

    def newest(self, times_ms: Ints) -> Ints:
        """The latest time of each sensor's rows, int64[m]."""
        newest = np.zeros(self.count, np.int64)
        if self._each_once:
            newest[self._place] = times_ms
        else:
            np.maximum.at(newest, self._place, times_ms)
        return newest

    def blocks(self) -> Iterator[tuple[Selection, slice]]:
        """The sensors in pieces that fit into a core's cache, each with its places."""
        for start in range(0, self.count, BLOCK_ROWS):
            places = slice(start, min(start + BLOCK_ROWS, self.count))
            yield (places if isinstance(self.sensors, slice) else self.sensors[places]), places


@dataclass(slots=True)
class WindowRows:
    """The rows of a batch that lie in the sample window of an index, all of them usage of a gap, or none.

    Attributes:
        is_late: The window is before those that the rates know.
        is_behind: It is before the newest two: its usage was reported by a broker or a meter that is behind.
        in_gap: See `quota.usage.Usage`.
    """

    window: int
    is_late: bool
    is_behind: bool
    in_gap: bool
    rows: Rows
    _groups: dict[tuple[int, int], SensorGroups] = field(default_factory=dict)
    _newest: dict[tuple[int, int], Ints] = field(default_factory=dict)

    def group(self, usage: Usage, quota_type: int, of_row: Ids, num_sensors: int) -> tuple[SensorGroups, Ints, Ints]:
        """Groups, sums and newest event times of rows with usage of a type. Types without nulls share a grouping."""
        measure = usage.measures[quota_type]
        rows = self.rows
        key = (id(of_row), -1)
        if measure.present is not None:
            rows = measure.present.nonzero()[0] if isinstance(rows, slice) else rows[measure.present[rows]]
            key = (id(of_row), quota_type)
        if key not in self._groups:
            self._groups[key] = SensorGroups(of_row[rows], num_sensors)
            self._newest[key] = self._groups[key].newest(usage.last_ms[rows])
        group = self._groups[key]
        return group, group.sums(measure.values[rows]) if group.count else np.zeros(0, np.int64), self._newest[key]


def split_by_window(usage: Usage, newest: int, num_samples: int) -> list[WindowRows]:
    """The rows of a batch, at least one, by sample window, oldest first; in each the usage of a gap first."""
    oldest, recent, first = newest - num_samples, newest - 1, int(usage.window[0])
    if usage.in_gap is None and (usage.window.strides == (0,) or bool((usage.window == first).all())):
        return [WindowRows(first, first < oldest, first < recent, False, _ALL)]
    begin = int(usage.window.min())
    place = (usage.window - begin) * 2 + 1
    if usage.in_gap is not None:
        place -= usage.in_gap
    order = np.argsort(place.astype(np.min_scalar_type(int(place.max()))), kind="stable")
    in_order = place[order]
    begins = np.flatnonzero(np.diff(in_order, prepend=-1))
    windows, of_gap = begin + in_order[begins] // 2, in_order[begins] % 2 == 0
    flags = (flag.tolist() for flag in (windows, windows < oldest, windows < recent, of_gap))
    return [WindowRows(*piece) for piece in zip(*flags, np.split(order, begins[1:]), strict=True)]


def record_piece(
    sensors: TypeSensors,
    piece: WindowRows,
    group: SensorGroups,
    sums: Ints,
    newest_ms: Ints,
    quota_type: int,
    refill_to_ms: int,
) -> None:
    """Put one window's usage of one type into samples (unless late) and buckets (unless unbounded)."""
    most_bursts = MAX_DEBT_BURSTS_OF_GAP if piece.in_gap else MAX_DEBT_BURSTS
    for selection, places in group.blocks():
        if not piece.is_late:
            sensors.windows.add(selection, piece.window, sums[places], newest_ms[places])
        if sensors.buckets is None:
            continue
        bound = sensors.bound[selection]
        charge = amounts(sums[places], quota_type)
        charged = selection
        bounded = np.isfinite(bound)
        if not bounded.all():
            chosen = np.flatnonzero(bounded)
            charged, bound, charge = at_places(selection, chosen), bound[chosen], charge[chosen]
        sensors.buckets.charge(charged, charge, bound, refill_to_ms, most_bursts)


def sensors_of(groups: list[SensorGroups], num_sensors: int) -> Ids:
    """The sensors of these groups, each once, ascending."""
    present = np.zeros(num_sensors, np.bool_)
    for group in groups:
        present[group.sensors] = True
    return present.nonzero()[0]


def violated_sensors(
    sensors: TypeSensors, groups: list[SensorGroups], num_sensors: int, now_ms: int
) -> tuple[Ids, Floats, Ints]:
    """The sensors of these groups whose rate is above their bound, each once, and O and W of each."""
    if len(groups) == 1:
        blocks = [selection for selection, _ in groups[0].blocks()]
    else:
        ids = sensors_of(groups, num_sensors)
        blocks = [ids[start : start + BLOCK_ROWS] for start in range(0, len(ids), BLOCK_ROWS)]
    found = [(np.zeros(0, np.int64), np.zeros(0, np.float64), np.zeros(0, np.int64))]
    for selection in blocks:
        at, observed, window_ms = sensors.windows.violated(selection, sensors.bound[selection], now_ms)
        if len(at):
            found.append((at_places(selection, at), observed, window_ms))
    if len(found) <= 2:
        return found[-1]
    ids, observed, window_ms = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return ids, observed, window_ms
