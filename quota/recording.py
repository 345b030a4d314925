"""How a batch of usage gets into the sensors of one quota type: summed per sensor and window, recorded, charged."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from quota.arrays import Floats, Ids, Ints
from quota.rates import MAX_DEBT_BURSTS, MAX_DEBT_BURSTS_OF_OLD, Selection, amounts, at_places, saturated
from quota.sensors import TypeSensors
from quota.usage import BLOCK_ROWS, Usage

Rows = slice | Ids

_EXACT_IN_FLOAT: Final = 1 << 53
_ALL: Final = slice(None)


class SensorGroups:
    """n rows grouped by sensor. Each of the m sensors among them has a place, from 0 to `count` − 1.

    `sensors` are ascending; a slice if they are all sensors of the engine.
    """

    def __init__(self, of_row: Ids, num_sensors: int) -> None:
        present = np.zeros(num_sensors, np.bool_)
        present[of_row] = True
        ids = np.flatnonzero(present)
        self.count = len(ids)
        self.sensors: Selection = ids
        self._place = of_row
        if self.count == num_sensors:
            self.sensors = slice(0, num_sensors)
        else:
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
    """The rows of a batch that lie in the sample window of an index, or (None) all late rows."""

    window: int | None
    rows: Rows
    _groups: dict[tuple[int, int], SensorGroups] = field(default_factory=dict)
    _newest: dict[tuple[int, int], Ints] = field(default_factory=dict)

    def group(self, usage: Usage, quota_type: int, of_row: Ids, num_sensors: int) -> tuple[SensorGroups, Ints, Ints]:
        """Groups, sums and newest event times of the rows that have usage of a type.

        Types without nulls whose rows go to the same sensors share one grouping.
        """
        measure = usage.measures[quota_type]
        rows = self.rows
        key = (id(of_row), -1)
        if measure.present is not None:
            rows = np.flatnonzero(measure.present) if isinstance(rows, slice) else rows[measure.present[rows]]
            key = (id(of_row), quota_type)
        if key not in self._groups:
            self._groups[key] = SensorGroups(of_row[rows], num_sensors)
            self._newest[key] = self._groups[key].newest(usage.last_ms[rows])
        group = self._groups[key]
        return group, group.sums(measure.values[rows]) if group.count else np.zeros(0, np.int64), self._newest[key]


def split_by_window(usage: Usage, newest: int, num_samples: int) -> list[WindowRows]:
    """The rows of a batch, at least one, by sample window, oldest first.

    All late rows, those of windows before newest − N, are one piece, before all others.
    """
    oldest = newest - num_samples
    first = int(usage.window[0])
    if first >= oldest and (usage.window.strides == (0,) or bool((usage.window == first).all())):
        return [WindowRows(first, _ALL)]
    place = np.maximum(usage.window - oldest, -1) + 1
    return [
        WindowRows(None if at == 0 else oldest + at - 1, np.flatnonzero(place == at))
        for at in np.flatnonzero(np.bincount(place)).tolist()
    ]


@dataclass(frozen=True, slots=True)
class BatchInstant:
    """The instant at which a batch is evaluated, in the sample window `newest`.

    `is_old`: no throttle is published for the batch.
    """

    now_ms: int
    newest: int
    num_samples: int
    sample_window_ms: int
    is_old: bool = False

    @property
    def most_bursts(self) -> float:
        """The largest debt that the batch leads to, in bursts."""
        return MAX_DEBT_BURSTS_OF_OLD if self.is_old else MAX_DEBT_BURSTS

    @property
    def ring_start_ms(self) -> int:
        """The start of the oldest sample window that the rates know."""
        return (self.newest - self.num_samples) * self.sample_window_ms

    def refill_to_ms(self, window: int) -> int:
        """Up to when buckets are refilled before this window is charged: its end, or now if that is earlier."""
        return min((window + 1) * self.sample_window_ms, self.now_ms)


def record_piece(
    sensors: TypeSensors,
    piece: WindowRows,
    group: SensorGroups,
    sums: Ints,
    newest_ms: Ints,
    quota_type: int,
    instant: BatchInstant,
) -> None:
    """Put one window's usage of one type into samples and buckets.

    Late usage is charged to the buckets only. For a sensor without a bound no bucket is charged.
    """
    for selection, places in group.blocks():
        if piece.window is not None:
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
        if piece.window is not None:
            sensors.buckets.charge(charged, charge, bound, instant.refill_to_ms(piece.window), instant.most_bursts)
        else:
            sensors.buckets.charge_late(charged, charge, bound, instant.ring_start_ms, instant.most_bursts)


def violated_sensors(
    sensors: TypeSensors, groups: list[SensorGroups], num_sensors: int, now_ms: int
) -> tuple[Ids, Floats, Ints]:
    """The sensors of these groups whose rate is above their bound, each once, and O and W of each."""
    if len(groups) == 1:
        blocks = [selection for selection, _ in groups[0].blocks()]
    else:
        present = np.zeros(num_sensors, np.bool_)
        for group in groups:
            present[group.sensors] = True
        ids = np.flatnonzero(present)
        blocks = [ids[start : start + BLOCK_ROWS] for start in range(0, len(ids), BLOCK_ROWS)]
    found = [(np.zeros(0, np.int64), np.zeros(0, np.float64), np.zeros(0, np.int64))]
    for selection in blocks:
        at, observed, window_ms = sensors.windows.violated(selection, sensors.bound[selection], now_ms)
        if len(at):
            found.append((at_places(selection, at), observed, window_ms))
    ids, observed, window_ms = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return ids, observed, window_ms
