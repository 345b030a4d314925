"""Who uses what on which broker: the usage table, sensor by sensor, as the brokers and all of them together see it.

Usage goes to sensors by the project's own resolution. A *cell* is one sensor on one broker, for one quota type. It is
made when the first usage comes, so a client that uses few of many brokers costs little. Sensors without a bound have
none.

The usage comes late, by a second or two, and in sample windows that begin at multiples of w; those of a broker begin
with the first event. So O agrees with the broker's own within one sample window, and
`quota.broker_levels.levels` allows for that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quota.arrays import Flags, Floats, Ids, Ints
from quota.entity import LEVELS_OF_DEFAULTS
from quota.rates import SampleWindows, SensorGroups, TypeSensors
from quota.resolution import Side
from quota.sensors import SensorTable
from quota.snapshot import QuotaSnapshot
from quota.usage import BYTES, EntityNames, Usage

NUM_SAMPLES: Final = 11
SAMPLE_WINDOW_MS: Final = 1000
RECENT_SAMPLES: Final = 3  # the sample windows of the recent rate: the mean of two to three seconds

_MIN_CAPACITY: Final = 64
_SHORTEST_IDLE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class BrokerView:
    """m entities on n brokers at an instant, up to which usage is known. All arrays are [m, n].

    Attributes:
        observed: O by the broker's rule, per second.
        window_ms: W.
        recent: the rate over the last two to three seconds, per second.
        last_ms: the time of the last event; 0 for none.
    """

    at_ms: int
    observed: Floats
    window_ms: Ints
    recent: Floats
    last_ms: Ints


class BrokerRates:
    """The sample windows of all cells of one quota type, the newest of which has `now_ms`. Rates of ns are percent."""

    def __init__(
        self, quota_type: int, now_ms: int, num_samples: int = NUM_SAMPLES, sample_window_ms: int = SAMPLE_WINDOW_MS
    ) -> None:
        newest = now_ms // sample_window_ms
        self._w = sample_window_ms
        self._long = SampleWindows(quota_type, num_samples, sample_window_ms, newest)
        self._recent = SampleWindows(quota_type, RECENT_SAMPLES, sample_window_ms, newest)
        self._last_ms: Ints = np.zeros(0, np.int64)

    def record(self, cells: Ids, window: int, sums: Ints, last_ms: Ints) -> None:
        """Record usage of one sample window, of any cells, each once; a window that no longer counts is left out."""
        if len(cells) == 0:
            return
        capacity = int(cells.max()) + 1
        if capacity > len(self._last_ms):
            capacity = max(capacity, 2 * len(self._last_ms), _MIN_CAPACITY)
            self._last_ms = np.pad(self._last_ms, (0, capacity - len(self._last_ms)))
            self._long.grow(capacity)
            self._recent.grow(capacity)
        for windows in (self._long, self._recent):
            windows.advance(window)
            if windows.oldest <= window:
                windows.add(cells, window, sums, last_ms)
        self._last_ms[cells] = np.maximum(self._last_ms[cells], last_ms)

    def view(self, cells: Ids, at_ms: int) -> BrokerView:
        """What the brokers see up to `at_ms`, of the cell of each entity and broker; −1 for one without usage."""
        of_cells = np.where(cells < len(self._last_ms), cells, -1).ravel()
        observed, window_ms = self._long.observed(of_cells, at_ms)
        recent, _ = self._recent.observed(of_cells, at_ms)
        last_ms = np.append(self._last_ms, 0)[of_cells]
        shape = cells.shape
        rates = observed.reshape(shape), window_ms.reshape(shape), recent.reshape(shape)
        return BrokerView(at_ms, *rates, last_ms.reshape(shape))

    def keep(self, kept: Flags) -> None:
        """Forget the cells that are not kept, bool[n]. The others close the gaps in their order."""
        known = len(self._last_ms)
        of_known = np.pad(kept[:known], (0, max(known - len(kept), 0)))
        self._long.keep(of_known)
        self._recent.keep(of_known)
        self._last_ms = self._last_ms[of_known]


NO_SENSOR: Final = -1
_NO_CELL: Final = -1

Tags = tuple[str, str]  # user and client-id of a sensor; "" for one that is no tag


class BrokerUsage:
    """The sensors of all clients, by number, and their cells on the brokers that are in the cluster."""

    def __init__(self, num_samples: int, sample_window_ms: int) -> None:
        self._n, self._w = num_samples, sample_window_ms
        self.idle_ms = max(2 * num_samples * sample_window_ms, _SHORTEST_IDLE_MS)
        """How long after its last usage a sensor is forgotten: no window counts it by then."""
        self._snapshot: QuotaSnapshot | None = None
        self._brokers: tuple[str, ...] = ()
        self.unplaced_bytes = 0
        self.forget()

    def forget(self) -> None:
        """Forget all sensors and their usage. Quotas and brokers stay."""
        self._sensors = SensorTable(RECENT_SAMPLES, self._w, by_broker=False, carry_debt=False)
        if self._snapshot is not None:
            self._sensors.load(self._snapshot)
        self._cells = np.zeros((0, len(self._brokers)), np.int64)
        self._num_cells = 0
        self._rates: dict[int, BrokerRates] = {}
        self._of_tags: dict[Tags, int] = {}
        self.tags: list[Tags] = []

    def load(self, snapshot: QuotaSnapshot) -> None:
        """Put other quotas in force, none in shadow mode. Which one bounds a sensor is found when it is next used."""
        self._snapshot = snapshot
        self._sensors.load(snapshot)
        for sensors in self._sensors.by_key.values():
            sensors.bound[:] = np.inf

    def set_brokers(self, broker_ids: Sequence[str]) -> Ints:
        """Set which brokers are in the cluster. Returns for each its column until now; −1 for one that has joined."""
        before = {broker_id: column for column, broker_id in enumerate(self._brokers)}
        columns = np.array([before.get(broker_id, -1) for broker_id in broker_ids], np.int64)
        known = np.append(self._cells, np.full((len(self._cells), 1), _NO_CELL), axis=1)
        self._brokers, self._cells = tuple(broker_ids), known[:, columns]
        self._forget_cells()
        return columns

    def record(self, usage: pa.Table) -> None:
        """Record usage: see `BrokerSync.record`."""
        broker = EntityNames(usage, has_brokers=True).broker_id
        column = pc.fill_null(pc.index_in(broker, pa.array(self._brokers, pa.string())), -1).to_numpy(False)
        unplaced = column < 0
        if unplaced.any():
            lost = usage.filter(pa.array(unplaced))
            self.unplaced_bytes += sum(pc.sum(lost[name]).as_py() or 0 for name in BYTES)
            usage, column = usage.filter(pa.array(~unplaced)), column[~unplaced]
        if usage.num_rows == 0 or not self._sensors.recording:
            return
        last_ms = int(pc.max(usage["last_event_ms"]).as_py())
        batch = Usage.read(usage, False, self._w, last_ms)
        self._sensors.advance(last_ms // self._w)
        _, of_row = self._sensors.look_up(batch.names, last_ms)
        self._name_sensors()
        for key in self._sensors.recording:
            self._sensors.numbers.used_at_ms[of_row[key]] = last_ms
            self._record_type(key[1], self._sensors.by_key[key], batch, of_row[key], column)

    def _record_type(self, quota_type: int, together: TypeSensors, batch: Usage, of_row: Ids, column: Ints) -> None:
        measure, counts = batch.measures[quota_type], np.isfinite(together.bound[of_row])
        rows = np.flatnonzero(counts if measure.present is None else counts & measure.present)
        sensors, values = of_row[rows], measure.values[rows]
        cells, window, last_ms = self._cells_of(sensors, column[rows]), batch.window[rows], batch.last_ms[rows]
        for one in np.unique(window).tolist():
            at = np.flatnonzero(window == one)
            groups = SensorGroups(cells[at], self._num_cells)
            of_cells = np.arange(self._num_cells)[groups.sensors]
            self._rates_of(quota_type, one).record(of_cells, one, groups.sums(values[at]), groups.newest(last_ms[at]))
            if one >= together.windows.oldest:
                groups = SensorGroups(sensors[at], len(self._sensors))
                together.windows.add(groups.sensors, one, groups.sums(values[at]), groups.newest(last_ms[at]))

    def _rates_of(self, quota_type: int, window: int) -> BrokerRates:
        if quota_type not in self._rates:
            self._rates[quota_type] = BrokerRates(quota_type, window * self._w, self._n, self._w)
        return self._rates[quota_type]

    def _cells_of(self, sensors: Ids, column: Ints) -> Ids:
        cells: Ids = self._cells[sensors, column]
        missing = cells == _NO_CELL
        if missing.any():
            flat = np.unique(sensors[missing] * len(self._brokers) + column[missing])
            self._cells[np.divmod(flat, len(self._brokers))] = self._num_cells + np.arange(len(flat))
            self._num_cells += len(flat)
            cells = self._cells[sensors, column]
        return cells

    def _name_sensors(self) -> None:
        known, now = len(self.tags), len(self._sensors)
        if known == now:
            return
        names = self._sensors.numbers.names(np.arange(known, now))
        self.tags.extend(zip(names["sensor_user"].to_pylist(), names["sensor_client_id"].to_pylist(), strict=True))
        self._of_tags.update(zip(self.tags[known:], range(known, now), strict=True))
        if now > len(self._cells):
            room = self._sensors.numbers.capacity - len(self._cells)
            self._cells = np.pad(self._cells, ((0, room), (0, 0)), constant_values=_NO_CELL)

    def sensor(self, tags: Tags) -> int:
        """The sensor with these tags; `NO_SENSOR` if it never had usage, or none for long."""
        return self._of_tags.get(tags, NO_SENSOR)

    def together(self, quota_type: int, at_ms: int) -> Floats:
        """The rate of each sensor over the last two to three seconds, on all brokers together, per second."""
        sensors = self._sensors.by_key.get((Side.ENFORCED, quota_type))
        if sensors is None:
            return np.zeros(len(self.tags))
        return sensors.windows.observed(np.arange(len(self.tags)), at_ms)[0]

    def default_bounds(self, quota_type: int) -> Floats:
        """T of each sensor that a default bounds; infinity for the others, and for those not used since `load`."""
        sensors = self._sensors.by_key.get((Side.ENFORCED, quota_type))
        if sensors is None:
            return np.full(len(self.tags), np.inf)
        size = len(self.tags)
        is_default = np.isin(sensors.level[:size], list(LEVELS_OF_DEFAULTS))
        return np.where(is_default, sensors.bound[:size], np.inf)

    def view(self, quota_type: int, sensors: Ids, at_ms: int) -> BrokerView:
        """What the brokers see of some sensors, in the order of `set_brokers`; nothing of `NO_SENSOR`."""
        cells = np.full((len(sensors), len(self._brokers)), _NO_CELL, np.int64)
        cells[sensors >= 0] = self._cells[sensors[sensors >= 0]]
        return self._rates_of(quota_type, at_ms // self._w).view(cells, at_ms)

    def expire(self, used: Ids, at_ms: int) -> bool:
        """Drop the sensors that had no usage for `idle_ms` and are not in `used`. Returns whether numbers changed."""
        numbers = self._sensors.numbers
        numbers.used_at_ms[used] = at_ms
        kept = numbers.used_at_ms[: len(self.tags)] >= at_ms - self.idle_ms
        if not self._sensors.expire_idle(at_ms, self.idle_ms):
            return False
        self._cells = self._cells[: len(kept)][kept]
        self.tags = [tags for tags, stays in zip(self.tags, kept.tolist(), strict=True) if stays]
        self._of_tags = {tags: number for number, tags in enumerate(self.tags)}
        self._forget_cells()
        return True

    def _forget_cells(self) -> None:
        """Forget the cells that no sensor has any more. The others close the gaps."""
        kept = np.zeros(self._num_cells, np.bool_)
        kept[self._cells[self._cells >= 0]] = True
        renumbered = np.append(np.cumsum(kept) - 1, _NO_CELL)
        self._cells, self._num_cells = renumbered[self._cells], int(kept.sum())
        for rates in self._rates.values():
            rates.keep(kept)
