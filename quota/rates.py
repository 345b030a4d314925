"""What a sensor remembers: its observed rate, from sums over sample windows, and its debt, in a token bucket.

Sample windows begin at multiples of w. For the buckets see `TokenBuckets`. How a batch of usage gets into both is at
the end.

**The formula.** This is Kafka's `Rate`. It does not move with every event. Time is cut into sample windows of w ms, and
per window a sensor keeps the integer sum of what was used in it and the time of its last event. A window expires as a
whole: at `now` it counts while `now − last < N · w`. The sums that count cover the time

    E = now − start of the oldest window that counts

A sum is an integer of at most 2^63 − 1: what is more counts as that.

Dividing by E alone would be unfair to a young sensor: one request in its first millisecond would be 1 000 requests per
second. So the rate is taken over at least N − 1 whole windows. Those that are missing count as empty ones:

    full = E // w        W = max(E + max(N − 1 − full, 0) · w, 1)        O = sum / (W / 1000.0)

E and W are in ms, O is per second. The floor of 1 ms matters only for N = 1, at the first instant of a window. If no
window counts, E = 0, W = max((N − 1) · w, 1) and O = 0.

A percentage is measured in ns of thread time. The sum stays an integer; percent = ns · 1e-7 is taken of the sum.

**Only two spans.** Let r = now mod w. All starts are multiples of w, so E mod w = r. Hence W is (N − 1) · w + r, or N ·
w + r. It is the longer one when the window that starts N · w before the current one still counts. All newer windows
count for certain, all older ones do not. So a sensor needs a running total of the newest N windows, and a look at that
one window.

**An example.** N = 11, w = 1 000. A sensor uses 11 MB at 100 400 ms and nothing else. W goes from 10 s to 11 s within
each sample window and back, and is longer only in the last one, from 111 000 on. The event counts until 111 399.

>>> windows = SampleWindows(quota_type=0, num_samples=11, sample_window_ms=1000, newest=100)
>>> windows.grow(1)
>>> windows.add(slice(0, 1), window=100, sums=np.array([11_000_000]), last_ms=np.array([100_400]))
>>> for now_ms in (100_500, 110_000, 110_999, 111_000, 111_399, 111_400):
...     observed, window_ms = windows.observed(np.array([0]), now_ms)
...     print(f"{now_ms}: O = {observed[0]:.0f} over W = {window_ms[0]} ms")
100500: O = 1047619 over W = 10500 ms
110000: O = 1100000 over W = 10000 ms
110999: O = 1000091 over W = 10999 ms
111000: O = 1000000 over W = 11000 ms
111399: O = 964997 over W = 11399 ms
111400: O = 0 over W = 10000 ms
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from quota.arrays import Flags, Floats, Ids, Ints
from quota.entity import REQUEST
from quota.tenants import NO_TENANT
from quota.usage import BLOCK_ROWS, LARGEST_SUM, Usage

NEVER_MS: Final = -(1 << 52)
"""Stands for "never" in an array of instants."""

Selection = slice | Ids  # sensors: a range of ids, or an array of ids that are all different

PERCENT_PER_NS: Final = 1e-7
_UNTOUCHED: Final = -1
_NEVER: Final = np.iinfo(np.int32).max
_ALMOST_ONE: Final = 1.0 - 1e-12
_START: Final = "sample_start_ms"

MAX_DEBT_BURSTS: Final = 10.0
MAX_DEBT_BURSTS_OF_GAP: Final = 1.0  # the same for usage of a gap: see `quota.usage.Usage`
_FULL: Final = np.inf  # tokens of a bucket that was never charged. They count as the burst of whatever T is in force.


def amounts(sums: Ints, quota_type: int) -> Floats:
    """Sums of usage, int64[n], in the unit of the bound: bytes as they are, ns as percent-seconds."""
    amount = sums.astype(np.float64)
    return amount * PERCENT_PER_NS if quota_type == REQUEST else amount


def saturated(sums: Ints, nearly: Floats) -> Ints:
    """Sums, wrapped around or not, with 2^63 − 1 in place of what does not fit; `nearly` has them as doubles."""
    wrapped = (sums < 0) | (nearly > 1.5 * 2.0**63)
    return np.where(wrapped, LARGEST_SUM, sums) if wrapped.any() else sums


def at_places(sensors: Selection, places: Ids) -> Ids:
    """The sensors at these places of a selection."""
    return places + sensors.start if isinstance(sensors, slice) else sensors[places]


class SampleWindows:
    """The sample windows of all sensors of one quota type: column k mod (N + 1) holds window k, from k · w on."""

    def __init__(self, quota_type: int, num_samples: int, sample_window_ms: int, newest: int) -> None:
        self._type = quota_type
        self._n = num_samples
        self._w = sample_window_ms
        self._newest = newest
        offset_type = np.int16 if sample_window_ms <= np.iinfo(np.int16).max else np.int32
        self._sums = np.zeros((num_samples + 1, 0), np.int64)
        self._last = np.zeros((num_samples + 1, 0), offset_type)
        self._total = np.zeros(0, np.int64)
        # Up to here the sum of all windows of a sensor fits. The running totals are of no use once a window has more.
        self._largest_safe = LARGEST_SUM // (num_samples + 1)
        self._totals_fit = True
        self._columns = np.arange(num_samples + 1)[:, None]

    @property
    def oldest(self) -> int:
        """Index of the oldest window of the ring."""
        return self._newest - self._n

    def grow(self, capacity: int) -> None:
        """Make room for this many sensors. The new ones are untouched."""
        room = max(capacity - len(self._total), 0)
        self._sums = np.pad(self._sums, ((0, 0), (0, room)))
        self._last = np.pad(self._last, ((0, 0), (0, room)), constant_values=_UNTOUCHED)
        self._total = np.pad(self._total, (0, room))

    def keep(self, kept: Flags) -> None:
        """Forget the sensors that are not kept, bool[n]. The others close the gaps in their order."""
        self._sums = self._sums[:, : len(kept)][:, kept]
        self._last = self._last[:, : len(kept)][:, kept]
        self._total = self._total[: len(kept)][kept]

    def restart(self, newest: int) -> None:
        """Empty all windows, and make `newest` the newest one, also if it is older."""
        self._sums[:] = 0
        self._last[:] = _UNTOUCHED
        self._total[:] = 0
        self._totals_fit = True
        self._newest = newest

    def advance(self, newest: int) -> None:
        """Make `newest` the newest window. Columns that leave the ring are emptied. An older window changes nothing."""
        first = max(self._newest + 1, newest - self._n)
        for window in range(first, newest + 1):
            leaving = self._sums[(window - self._n) % (self._n + 1)]
            if self._newest - self._n < window - self._n <= self._newest:
                self._total -= leaving
            self._sums[window % (self._n + 1)] = 0
            self._last[window % (self._n + 1)] = _UNTOUCHED
        if newest - self._newest > self._n:
            self._total[:] = 0
        self._newest = max(self._newest, newest)

    def add(self, sensors: Selection, window: int, sums: Ints, last_ms: Ints) -> None:
        """Record sums of sensors, each once, in one of the N + 1 windows, and the time of the last event in it."""
        column = window % (self._n + 1)
        of_window = self._sums[column][sensors] + sums
        if len(of_window) and (of_window.max() > self._largest_safe or of_window.min() < 0):
            of_window[of_window < 0] = LARGEST_SUM
            self._totals_fit = False
        self._sums[column][sensors] = of_window
        if window > self._newest - self._n:
            self._total[sensors] += sums
        offset = (last_ms - window * self._w).astype(self._last.dtype)
        row = self._last[column]
        row[sensors] = np.maximum(row[sensors], offset)

    def empty(self, sensors: Ids) -> None:
        """Make all windows of some sensors as if they had never recorded anything."""
        self._sums[:, sensors], self._last[:, sensors], self._total[sensors] = 0, _UNTOUCHED, 0

    def are_behind(self, sensors: Ids) -> Flags:
        """Which sensors have no usage in the newest two windows."""
        newest, before = (self._last[(self._newest - back) % (self._n + 1)][sensors] for back in (0, 1))
        are_untouched: Flags = (newest == _UNTOUCHED) & (before == _UNTOUCHED)
        return are_untouched

    def violated(self, sensors: Selection, bound: Floats, now_ms: int) -> tuple[Ids, Floats, Ints]:
        """Positions of sensors with O > T, ascending, and O and W of each. `now_ms` is in the newest window."""
        # No violation is missed, and most sensors end here.
        suspects = (self.at_most(sensors, now_ms) > bound).nonzero()[0]
        if len(suspects) == 0:
            return suspects, np.zeros(0, np.float64), np.zeros(0, np.int64)
        observed, window_ms = self.observed(at_places(sensors, suspects), now_ms)
        above = (observed > bound[suspects]).nonzero()[0]
        return suspects[above], observed[above], window_ms[above]

    def at_most(self, sensors: Selection, now_ms: int) -> Floats:
        """No less than O of sensors at an instant in the newest window: all that can count, over the shortest span."""
        oldest = (self._newest - self._n) % (self._n + 1)
        if self._totals_fit:
            total = self._total[sensors] + self._sums[oldest][sensors]
        else:
            total = self._summed(self._sums[:, sensors])
        short_seconds = max((self._n - 1) * self._w + now_ms % self._w, 1) / 1000.0
        return amounts(total, self._type) / (short_seconds * _ALMOST_ONE)

    def observed(self, sensors: Ids, now_ms: int | Ints) -> tuple[Floats, Ints]:
        """O per second and W in ms of sensors at an instant, or each at its own; −1 has the rate 0."""
        current, within = divmod(now_ms, self._w)
        # How late in a window its last event must be for the window to count: N windows ago later than now is in its
        # own, after that at any time, before that never.
        if isinstance(current, int) and current == self._newest:
            is_oldest = self._columns == self.oldest % (self._n + 1)
            after = np.where(is_oldest, within, _UNTOUCHED)
        else:
            age = current - (self._newest - (self._newest - self._columns) % (self._n + 1))
            is_oldest = age == self._n
            after = np.where(age < self._n, _UNTOUCHED, np.where(is_oldest, within, _NEVER))
        if self._last.shape[1]:
            counts = (self._last.take(sensors, axis=1, mode="clip") > after) & (sensors >= 0)
            total = self._summed(self._sums.take(sensors, axis=1, mode="clip") * counts)
        else:
            counts, total = np.zeros((self._n + 1, len(sensors)), np.bool_), np.zeros(len(sensors), np.int64)
        short = (self._n - 1) * self._w
        oldest_counts = (counts & is_oldest).any(axis=0)
        window_ms = np.maximum(short + within * counts.any(axis=0) + self._w * oldest_counts, 1)
        return amounts(total, self._type) / (window_ms / 1000.0), window_ms

    def _summed(self, windows: Ints) -> Ints:
        total: Ints = windows.sum(axis=0)
        return total if self._totals_fit else saturated(total, windows.sum(axis=0, dtype=np.float64))


def is_on_windows(usage: pa.Table, sample_window_ms: int) -> bool:
    """Whether every row of usage is in a sample window of this span, as the engine demands it. True without rows."""
    last_event_ms: Ints = usage["last_event_ms"].to_numpy()
    return bool(np.array_equal(usage[_START].to_numpy(), last_event_ms - last_event_ms % sample_window_ms))


class TokenBuckets:
    """The token buckets of all sensors of one quota type: the debt that capped throttles have not paid off yet.

    This is Kafka's `TokenBucket` (KIP-599). One token is one unit of the bound: a byte, or a percent-second. The bucket
    may hold

        burst = N · (w / 1000) · T tokens        (with the defaults: what T allows in 11 s)

    It is refilled with T tokens per second, never above the burst, and usage takes tokens out. It may go below zero. A
    sensor that uses exactly T takes out what comes in, so its tokens do not change. One that uses more ends below zero:
    that is its debt. A client that stops pays it off in

        wait = −tokens / T seconds        (`quota.throttle_time.debt_time_ms`)

    A bucket is charged per sample window, in order, also for late usage, of windows that the rates no longer know.
    First it is refilled to the end of the window, or to the instant of evaluation if that is earlier. Then the sum of
    the window is taken out. The refill time never goes back.

    * A bucket is full when its sensor is charged for the first time.
    * No debt is larger than ten bursts. What is above that is forgotten.
    * Usage of a gap, in which no throttle could be published, leads to no larger debt than one burst: its client was
      not asked to wait. A debt that is larger already stays.
    * T is the bound at the time of the charge or the look. A change of T changes nothing that is stored: from then on a
      debt is limited to ten bursts of the new T, and the time since the last charge is refilled at the new T, as in
      Kafka.

    For example N = 11, w = 1 000, T = 10 per second, so the burst is 110. At 100 s usage of 100 leaves 10. At 101 s,
    refilled with 10, usage of 150 leaves −130: the client must wait 13 s, and it has 0 tokens at 114 s.

    >>> buckets = TokenBuckets(num_samples=11, sample_window_ms=1000)
    >>> buckets.grow(1)
    >>> one, bound = np.array([0]), np.array([10.0])
    >>> for amount, at_ms in ((100.0, 100_000), (150.0, 101_000)):
    ...     buckets.charge(one, np.array([amount]), bound, refill_to_ms=at_ms)
    ...     print(buckets.tokens_at(one, bound, at_ms))
    [10.]
    [-130.]
    >>> buckets.tokens_at(one, bound, 114_000), buckets.tokens_at(one, bound, 1_000_000)
    (array([0.]), array([110.]))
    """

    def __init__(self, num_samples: int, sample_window_ms: int) -> None:
        self._burst_seconds = num_samples * (sample_window_ms / 1000.0)
        self._tokens = np.zeros(0, np.float64)
        self._refilled_at_ms = np.zeros(0, np.int64)

    def grow(self, capacity: int) -> None:
        """Make room for this many sensors. New buckets are full."""
        room = max(capacity - len(self._tokens), 0)
        self._tokens = np.pad(self._tokens, (0, room), constant_values=_FULL)
        self._refilled_at_ms = np.pad(self._refilled_at_ms, (0, room))

    def keep(self, kept: Flags) -> None:
        """See `SampleWindows.keep`."""
        self._tokens = self._tokens[: len(kept)][kept]
        self._refilled_at_ms = self._refilled_at_ms[: len(kept)][kept]

    def move_clock(self, moved_ms: int) -> None:
        """Move the times of all refills by this much."""
        self._refilled_at_ms += moved_ms

    def charge(
        self,
        sensors: Selection,
        amounts: Floats,
        bound: Floats,
        refill_to_ms: int,
        most_bursts: float = MAX_DEBT_BURSTS,
    ) -> None:
        """Refill, then take the amounts out; that leads to no larger debt than so many bursts. T must be finite.

        To refill to an instant before the last refill changes nothing.
        """
        burst = self._burst_seconds * bound
        since_ms = np.maximum(refill_to_ms - self._refilled_at_ms[sensors], 0)
        tokens = np.maximum(self._tokens[sensors], burst * -MAX_DEBT_BURSTS)
        tokens += bound * (since_ms / 1000.0)
        np.minimum(tokens, burst, out=tokens)
        # A larger debt that was there stays.
        least = np.minimum(tokens, burst * -most_bursts)
        self._tokens[sensors] = np.maximum(tokens - amounts, least)
        self._refilled_at_ms[sensors] += since_ms

    def fill(self, sensors: Ids) -> None:
        """Make some buckets full, as if they had never been charged."""
        self._tokens[sensors], self._refilled_at_ms[sensors] = _FULL, 0

    def tokens_left(self, sensors: Ids, bound: Floats) -> Floats:
        """The tokens of sensors right after their last charge, when each was last refilled. T must be finite."""
        burst = self._burst_seconds * bound
        return np.clip(self._tokens[sensors], burst * -MAX_DEBT_BURSTS, burst)

    def may_owe(self, sensors: Ids) -> Flags:
        """False for those that owe nothing at any instant from now on, if they use nothing."""
        may: Flags = self._tokens[sensors] < 0
        return may

    def tokens_at(self, sensors: Ids, bound: Floats, now_ms: int | Ints) -> Floats:
        """The tokens of sensors at an instant, or each at its own; −1 is full. T must be finite."""
        burst = self._burst_seconds * bound
        if len(self._tokens) == 0:
            return burst
        since_ms = np.maximum(now_ms - self._refilled_at_ms[sensors], 0)
        tokens = np.maximum(self._tokens[sensors], burst * -MAX_DEBT_BURSTS) + bound * (since_ms / 1000.0)
        return np.where(sensors >= 0, np.minimum(tokens, burst), burst)

    def charged(self) -> Ids:
        """The sensors whose buckets were charged at least once."""
        return np.flatnonzero(self._tokens != _FULL)

    def below_burst(self, sensors: Ids, bound: Floats, now_ms: int) -> Flags:
        """True for buckets that are not full at an instant. One without a bound (infinity) never becomes full."""
        finite = np.where(np.isfinite(bound), bound, 1.0)
        tokens = self.tokens_at(sensors, finite, now_ms)
        return np.isinf(bound) | (tokens < self._burst_seconds * finite)

    def stored(self, sensors: Ids) -> tuple[Floats, Ints]:
        """The tokens of each sensor at its last refill, float64[m], and when that was, int64[m]."""
        return self._tokens[sensors], self._refilled_at_ms[sensors]

    def restore(self, sensors: Ids, tokens: Floats, refilled_at_ms: Ints) -> None:
        """Set some buckets to what `stored` returned. All others become full."""
        self._tokens[:] = _FULL
        self._refilled_at_ms[:] = 0
        self._tokens[sensors] = tokens
        self._refilled_at_ms[sensors] = refilled_at_ms


class TypeSensors:
    """Samples and buckets (None: no debt is carried) of each sensor, for one quota type on one side, and its quota.

    T, the level, the tenant, whether a throttle holds the user, and (on the shadow side) whether it is in shadow mode
    are of the last time that one of its entities was resolved: infinity, 0, none and False for no quota. `is_resolved`:
    that was under the quotas in force. `bound` is the bound in force: T, or of a member what its tenant leaves it.
    `demanded_at_ms` is when a member was last seen to want more than it has.
    """

    _FILLS: ClassVar[Mapping[str, float]] = {
        "bound": np.inf,
        "own": np.inf,
        "level": 0,
        "tenant": NO_TENANT,
        "demanded_at_ms": NEVER_MS,
        "is_shadow": 0,
        "holds_user": 0,
        "is_resolved": 0,
    }

    def __init__(self, windows: SampleWindows, buckets: TokenBuckets | None) -> None:
        self.windows = windows
        self.buckets = buckets
        self.bound = np.zeros(0, np.float64)
        self.own = np.zeros(0, np.float64)
        self.level = np.zeros(0, np.int64)
        self.tenant = np.zeros(0, np.int64)
        self.demanded_at_ms = np.zeros(0, np.int64)
        self.is_shadow = np.zeros(0, np.bool_)
        self.holds_user = np.zeros(0, np.bool_)
        self.is_resolved = np.zeros(0, np.bool_)

    def bucket_of(self, sensors: Ids) -> tuple[Floats, Ints]:
        """`TokenBuckets.stored`; infinity without a bucket."""
        if self.buckets is None:
            return np.full(len(sensors), np.inf), np.zeros(len(sensors), np.int64)
        return self.buckets.stored(sensors)

    def grow(self, capacity: int) -> None:
        """Make room for this many sensors."""
        room = capacity - len(self.bound)
        if room <= 0:
            return
        for name, fill in self._FILLS.items():
            setattr(self, name, np.pad(getattr(self, name), (0, room), constant_values=fill))
        self.windows.grow(capacity)
        if self.buckets is not None:
            self.buckets.grow(capacity)

    def keep(self, kept: Flags) -> None:
        """Forget the sensors that are not kept, bool[n]. The others close the gaps in their order."""
        for name in self._FILLS:
            setattr(self, name, getattr(self, name)[: len(kept)][kept])
        self.windows.keep(kept)
        if self.buckets is not None:
            self.buckets.keep(kept)


# A batch of usage, summed per sensor and sample window, recorded in samples, and charged to buckets.

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
    rows: slice | Ids
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
