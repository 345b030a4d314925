"""Entities, brokers and a controller on one clock that is set by hand.

Each client sends its share of k · T to each broker, in one request per 20 ms, whenever that broker does not mute it.
The controller comes once a second and knows the usage up to a second before. Its levels are in force at once. All
entities of a run are on the same brokers.

The brokers
-----------
Brokers on a clock that is set by hand: each enforces its own bound with Kafka's rate rule, and sees nothing else.

The rule is that of docs/design.md, "The rate", with the difference that a broker's sample windows begin with the first
event and not at multiples of w, as Kafka's do. A client that exceeds the bound is muted for X: it sends nothing to that
broker, and does not make up for it later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from quota.broker_levels.level_control import NEVER_MS, LevelState, propose
from quota.broker_levels.level_control import LevelRules as Rules
from quota.broker_levels.usage import BrokerRates, BrokerView
from quota.throttle_time import throttle_time_ms

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

NUM_SAMPLES: Final = 11
SAMPLE_WINDOW_MS: Final = 1000


class SimulatedBrokers:
    """The sensors of c cells. A cell is one entity on one broker."""

    def __init__(self, cells: int) -> None:
        self._start, self._last = (np.zeros((NUM_SAMPLES + 1, cells), np.int64) for _ in range(2))
        self._value = np.zeros((NUM_SAMPLES + 1, cells))
        self._count, self._current, self.muted_until_ms = (np.zeros(cells, np.int64) for _ in range(3))

    def restart(self, cells: Ints) -> None:
        """These brokers begin anew: without samples, and with no client muted."""
        self._count[cells] = self._current[cells] = self.muted_until_ms[cells] = 0
        self._value[:, cells] = 0.0

    def send(self, amount: Floats, bound: Floats, now_ms: int) -> Floats:
        """Offer one request per cell. A muted client sends nothing, and 0 is no request.

        Returns:
            What was sent, float64[c].
        """
        sends = (amount > 0) & (now_ms >= self.muted_until_ms)
        cells = np.flatnonzero(sends)
        if len(cells):
            self._record(cells, amount[cells], now_ms)
            observed, window_ms = self._measure(cells, now_ms)
            mute_ms = throttle_time_ms(observed, bound[cells], window_ms)
            self.muted_until_ms[cells] = now_ms + mute_ms
        return np.where(sends, amount, 0.0)

    def _record(self, cells: Ints, amount: Floats, now_ms: int) -> None:
        current = self._current[cells]
        is_new = self._count[cells] == 0
        is_over = ~is_new & (now_ms - self._start[current, cells] >= SAMPLE_WINDOW_MS)
        current = np.where(is_over, (current + 1) % (NUM_SAMPLES + 1), current)
        self._current[cells] = current
        self._count[cells] = np.maximum(self._count[cells], current + 1)
        begins = is_new | is_over
        self._start[current[begins], cells[begins]] = now_ms
        self._value[current[begins], cells[begins]] = 0.0
        self._value[current, cells] += amount
        self._last[current, cells] = now_ms

    def _measure(self, cells: Ints, now_ms: int) -> tuple[Floats, Ints]:
        start, last, value = (kept[:, cells] for kept in (self._start, self._last, self._value))
        exists = np.arange(NUM_SAMPLES + 1)[:, None] < self._count[cells]
        stale = exists & (now_ms - last >= NUM_SAMPLES * SAMPLE_WINDOW_MS)
        if stale.any():
            start[stale] = last[stale] = now_ms
            value[stale] = 0.0
            self._start[:, cells], self._last[:, cells], self._value[:, cells] = start, last, value
        elapsed_ms = now_ms - np.where(exists, start, now_ms).min(axis=0)
        missing = np.maximum(NUM_SAMPLES - 1 - elapsed_ms // SAMPLE_WINDOW_MS, 0)
        window_ms = np.maximum(elapsed_ms + missing * SAMPLE_WINDOW_MS, 1)
        return value.sum(axis=0) / (window_ms / 1000.0), window_ms


SECONDS: Final = 230
MOVE_SECOND: Final = 100
OVERLOADS: Final = (1.2, 5.0, 20.0)

Split = tuple[float | None, ...]
"""The share of each broker; None for one that is not there."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """An entity that wants k · T, split over brokers."""

    split: str  # what happens, in words
    overload: float  # k
    splits: Mapping[int, Split]  # the split that begins at each second; the first at 0

    def shares(self, second: int) -> Floats:
        """The share of each broker, float64[n]; NaN for one that is not there."""
        begun = max(start for start in self.splits if start <= second)
        return np.array([np.nan if share is None else share for share in self.splits[begun]])

    @property
    def presence(self) -> tuple[tuple[int, tuple[bool, ...]], ...]:
        """Which brokers are there from which second on. Scenarios with equal ones can be simulated together."""
        return tuple((start, tuple(share is not None for share in split)) for start, split in self.splits.items())


def even(brokers: int) -> Split:
    return (1.0 / brokers,) * brokers


MOVES: Final[Mapping[str, Mapping[int, Split]]] = {
    "2, 90/10 → 10/90": {0: (0.9, 0.1), MOVE_SECOND: (0.1, 0.9)},
    "2, even → 99/1": {0: even(2), MOVE_SECOND: (0.99, 0.01)},
    "2, 99/1 → even": {0: (0.99, 0.01), MOVE_SECOND: even(2)},
    "3, even → one leaves": {0: even(3), MOVE_SECOND: (0.5, 0.5, None)},
    "3, even → one away for 5 s": {0: even(3), MOVE_SECOND: (0.5, 0.5, None), MOVE_SECOND + 5: even(3)},
}
"""Brokers, split and what it becomes → the splits."""


def scenarios() -> list[Scenario]:
    return [Scenario(split, overload, splits) for split, splits in MOVES.items() for overload in OVERLOADS]


BOUND: Final = 1_000_000.0
STEP_MS: Final = 20
LAG_SECONDS: Final = 1
START_MS: Final = 1_700_000_000_000
OFFSET_MS: Final = 7
"""The first request: the brokers' sample windows begin here, those of the controller at multiples of a second."""


class ByRule:
    """The rule of `quota.broker_levels.level_control`."""

    def __init__(self, size: int, brokers: int) -> None:
        self._bound, self._rules = np.full(size, BOUND), Rules()
        over_at_ms = np.full(size, START_MS)
        level = self._bound / brokers  # what a job would have left
        self._state = LevelState.start(level, np.full(size, NEVER_MS), over_at_ms, brokers, START_MS)

    @property
    def level(self) -> Floats:
        return self._state.level

    def brokers_changed(self, columns: Ints, now_ms: int) -> None:
        """Forget what was known of brokers that left, and correct levels below the new T / n at once."""
        self._state = self._state.on_brokers(columns)
        level = np.maximum(self._state.level, self._bound / len(columns))
        rows = np.flatnonzero(level != self._state.level)
        self._state = self._state.altered(rows, level[rows], now_ms)

    def period(self, view: BrokerView, now_ms: int) -> None:
        proposals, self._state = propose(view, self._bound, self._state, now_ms, self._rules)
        rows = np.flatnonzero(proposals.cause)
        self._state = self._state.altered(rows, proposals.level[rows], now_ms)


@dataclass(frozen=True, slots=True)
class Run:
    """What one entity did."""

    scenario: Scenario  # its load
    sent: Floats  # what all brokers took in each second, divided by T, float64[SECONDS]
    alters: tuple[tuple[int, float], ...]  # (second, L / T) of each alter
    lowest: float  # the smallest L · n / T
    highest: float  # the largest L / T

    def mean(self, start: int, stop: int) -> float:
        """The mean from one second to another, divided by T."""
        return float(self.sent[start:stop].mean())

    def windows(self, length: int, start: int, stop: int) -> tuple[float, float]:
        """The smallest and the largest mean of all windows of so many seconds that lie in a span."""
        sums = np.concatenate(([0.0], np.cumsum(self.sent[start:stop])))
        means = (sums[length:] - sums[:-length]) / length
        return float(means.min()), float(means.max())


def run_all(scenarios: Sequence[Scenario]) -> list[Run]:
    """Simulate every scenario; those on the same brokers together.

    Returns:
        One run per scenario, in their order.
    """
    groups: dict[object, list[int]] = {}
    for place, scenario in enumerate(scenarios):
        static = len(scenario.presence) == 1 or all(all(present) for _, present in scenario.presence)
        key = len(scenario.shares(0)) if static else scenario.presence
        groups.setdefault(key, []).append(place)
    found: dict[int, Run] = {}
    for places in groups.values():
        runs = _Cluster([scenarios[place] for place in places]).run()
        found.update(zip(places, runs, strict=True))
    return [found[place] for place in range(len(scenarios))]


class _Cluster:
    """The brokers and entities of one run."""

    def __init__(self, scenarios: Sequence[Scenario]) -> None:
        self._scenarios = scenarios
        self._shape = (len(scenarios), len(scenarios[0].shares(0)))
        size = self._shape[0] * self._shape[1]
        self._cells = np.arange(size).reshape(self._shape)
        self._brokers = SimulatedBrokers(size)
        self._rates = BrokerRates(0, START_MS - 1000)
        self._present = ~np.isnan(scenarios[0].shares(0))
        self._controller = ByRule(self._shape[0], int(self._present.sum()))
        self._overload = np.array([scenario.overload for scenario in scenarios])[:, None]

    def run(self) -> list[Run]:
        """All seconds."""
        size, brokers = self._shape
        sent, last_ms = np.zeros((SECONDS, size, brokers)), np.zeros((SECONDS, size, brokers), np.int64)
        levels = np.zeros((SECONDS + 1, size))
        counts = np.zeros(SECONDS, np.int64)
        levels[0] = self._controller.level
        alters: list[list[tuple[int, float]]] = [[] for _ in range(size)]
        for second in range(SECONDS):
            shares = np.array([scenario.shares(second) for scenario in self._scenarios])
            self._on_brokers(~np.isnan(shares[0]), START_MS + second * 1000)
            corrected = self._controller.level
            _note(alters, second, levels[second], corrected)
            wanted = np.nan_to_num(shares) * self._overload * BOUND
            self._second(second, wanted, sent[second], last_ms[second])
            known = second - LAG_SECONDS
            if known >= 0:
                self._period(known, sent[known], last_ms[known], START_MS + (second + 1) * 1000)
            levels[second + 1], counts[second] = self._controller.level, self._present.sum()
            _note(alters, second + 1, corrected, levels[second + 1])
        return [
            Run(
                self._scenarios[row],
                sent[:, row].sum(axis=1) / BOUND,
                tuple(alters[row]),
                float((levels[1:, row] * counts).min() / BOUND),
                float(levels[:, row].max() / BOUND),
            )
            for row in range(size)
        ]

    def _on_brokers(self, present: NDArray[np.bool_], now_ms: int) -> None:
        if np.array_equal(present, self._present):
            return
        column = np.cumsum(self._present) - 1
        columns = np.where(self._present, column, -1)[present]
        joined = np.flatnonzero(present & ~self._present)
        for broker in joined:
            self._brokers.restart(np.arange(self._shape[0]) * self._shape[1] + broker)
            self._cells[:, broker] = self._cells.max() + 1 + np.arange(self._shape[0])
        self._present = present
        self._controller.brokers_changed(columns, now_ms)

    def _second(self, second: int, wanted: Floats, sent: Floats, last_ms: Ints) -> None:
        amount = (wanted * (STEP_MS / 1000.0)).ravel()
        bound = np.repeat(self._controller.level, self._shape[1])
        for step in range(0, 1000, STEP_MS):
            now_ms = START_MS + second * 1000 + step + OFFSET_MS
            took = self._brokers.send(amount, bound, now_ms).reshape(self._shape)
            sent += took
            last_ms[took > 0] = now_ms

    def _period(self, known: int, sent: Floats, last_ms: Ints, now_ms: int) -> None:
        used = sent > 0
        window = START_MS // 1000 + known
        sums = np.rint(sent[used]).astype(np.int64)
        self._rates.record(self._cells[used], window, sums, last_ms[used])
        view = self._rates.view(self._cells[:, self._present], (window + 1) * 1000 - 1)
        self._controller.period(view, now_ms)


def _note(alters: list[list[tuple[int, float]]], second: int, before: Floats, after: Floats) -> None:
    for row in np.flatnonzero(before != after):
        alters[row].append((second, float(after[row] / BOUND)))


# How near to T a run is.

SETTLED: Final = 40
"""Seconds after the start or a move from which on the sum shall be within 5 % of T, in each window of 50 s."""


def settled(run: Run) -> tuple[float, float]:
    """The smallest and the largest mean of 50 s, of windows that begin 40 s after the start or the move, or later."""
    spans = ((SETTLED, MOVE_SECOND), (MOVE_SECOND + SETTLED, SECONDS))
    lows, highs = zip(*(run.windows(50, *span) for span in spans), strict=True)
    return min(lows), max(highs)


def after_move(run: Run) -> float:
    """The mean from 10 to 30 s after the move."""
    return run.mean(MOVE_SECOND + 10, MOVE_SECOND + 30)


def shortest_interval(run: Run) -> float:
    """The shortest time between two alters, in seconds; infinity for fewer than two."""
    seconds = [second for second, _ in run.alters]
    return min((after - before for before, after in pairwise(seconds)), default=float("inf"))
