"""Usage from scraped rates: what a broker's quota sensors showed at some instants becomes bytes and ns by the second.

A sensor shows Kafka's `Rate` (`quota.rates`): at an instant t the usage of the last W(t) seconds, divided by W(t). W is
from N − 1 to N + 1 sample windows: 10 to 12 s with the defaults. It depends on when the sensor's sample windows began,
which no scrape shows. Two sums follow from rates, and the larger one is charged:

* **The mean.** Every byte is in the rate for 11 to 12 s, with a weight of 1 / W. So the integral of the rate over time
  is the usage, half a window late. It is 1.00 of it for a client that sends all the time, 1.05 for one with at most a
  request a second, and 1.09 for a burst of one second after a rest: while a rate rises W is 10 to 11 s, later it may be
  11 to 12 s. How many requests there were is not in the rate, so no rule is exact for all of them. `RISE_SECONDS` takes
  back what bursts have too much, and `MEAN_BIAS` puts what is left in the middle: ±2.5 %.
* **What is there at once.** At the first scrape after a burst the mean has charged nearly nothing of it, but the last
  12 s had 10.5 s times the rate, to 5 %, if the client rested before; if not, more. What was charged in these 12 s is
  taken off, and it is never further ahead of the mean than that.

The mean makes long-run sums right, the other one makes a violation begin soon.

After a gap (a target was away) at most one window is charged. What was used before it is unknown, and nothing is
invented for it.

An example
----------
A client sends 1 MB at once, and nothing else. It is in the rate for 11 s. At the first scrape all of it is charged, to
5 %, and nothing is charged again when the mean has caught up.

>>> usage = ScrapedUsage()
>>> usage.grow(1)
>>> for second, rate in [(0, 0.0), (2, 100_000.0), (4, 97_000.0), (6, 93_000.0), (8, 98_000.0), (10, 95_000.0)]:
...     usage.observe(np.array([rate]), 1_000 * second)
...     ends_ms, charged = usage.take(1_000 * second)
...     print(second, charged.ravel().tolist())
0 []
2 [525000, 525000]
4 [0, 0]
6 [0, 0]
8 [0, 0]
10 [0, 0]
"""

from typing import Final

import numpy as np

from quota.arrays import Flags, Floats, Ints

MEAN_BIAS: Final = 1.02
"""The mean, divided by the usage: the middle of what clients have."""

RISE_SECONDS: Final = 0.5
"""So many seconds of what a rate has risen by are usage that the mean would charge twice."""

NUM_SAMPLES: Final = 11
SAMPLE_WINDOW_MS: Final = 1000
"""Kafka's defaults: `quota.window.num` and `quota.window.size.seconds`."""

_YOUNG_SECONDS: Final = (NUM_SAMPLES - 0.5) * SAMPLE_WINDOW_MS / 1000
_LONGEST_MS: Final = (NUM_SAMPLES + 1) * SAMPLE_WINDOW_MS

MOST_SECONDS: Final = 60
"""Usage that waits to be taken is dated in as many seconds at most."""

_SECOND_MS: Final = 1000


class ScrapedUsage:
    """The usage of the sensors of one broker, from their rates. Pure; one caller at a time.

    A sensor is a position in the arrays. New ones are added at the end.
    """

    window_ms = NUM_SAMPLES * SAMPLE_WINDOW_MS
    """What is charged after a gap, at most."""

    def __init__(self) -> None:
        self._at_ms: int | None = None
        self._begun_ms = 0
        self._rates = np.zeros(0)
        # Sums since what was taken last. Below 0: what the mean, or an earlier scrape, is behind.
        self._mean = np.zeros(0)
        self._charged = np.zeros(0)
        self._history: list[tuple[int, Floats]] = []

    def __len__(self) -> int:
        """The number of sensors."""
        return len(self._rates)

    @property
    def is_settled(self) -> Flags:
        """Whether the rate of a sensor is 0 and nothing of its usage is left to be charged, bool[n]."""
        settled: Flags = (self._rates == 0) & (self._charged < 1)
        return settled & (self._history[0][1] == self._charged) if self._history else settled

    def grow(self, count: int) -> None:
        """Make room for this many sensors. The new ones had no usage until the last scrape."""
        if count <= len(self):
            return
        room = (0, count - len(self))
        self._rates, self._mean, self._charged = (np.pad(one, room) for one in (self._rates, self._mean, self._charged))
        self._history = [(at_ms, np.pad(charged, room)) for at_ms, charged in self._history]

    def keep(self, kept: Flags) -> None:
        """Forget the sensors that are not kept, bool[n]. The others close the gaps in their order."""
        self._rates, self._mean, self._charged = self._rates[kept], self._mean[kept], self._charged[kept]
        self._history = [(at_ms, charged[kept]) for at_ms, charged in self._history]

    def observe(self, rates: Floats, at_ms: int) -> None:
        """Rates were seen.

        Args:
            rates: per second, of every sensor, float64[n], finite and not negative; 0 where a sensor is gone.
            at_ms: the instant, on a clock that never steps. One that is not after the last one changes nothing.
        """
        if self._at_ms is None:
            self._begun_ms = at_ms
            self._begin(rates, at_ms)
            return
        since_ms = at_ms - self._at_ms
        if since_ms <= 0:
            return
        # A rate stands for half the time to the scrapes around it. After a gap the window is all that is known.
        seconds = min(since_ms, self.window_ms) / 1000
        rise = np.maximum(rates - self._rates, 0)
        self._mean += ((self._rates + rates) * (seconds / 2) - rise * RISE_SECONDS) / MEAN_BIAS
        self._charged = np.maximum(self._charged, self._mean)
        if since_ms > self.window_ms:
            self._begun_ms = max(self._begun_ms, at_ms - self.window_ms)
            self._begin(rates, at_ms)
            return
        # Above the mean by no more than the window, or what is charged too early would add up.
        before = np.minimum(self._charged_before(at_ms - _LONGEST_MS), self._mean)
        self._charged = np.maximum(self._charged, before + rates * _YOUNG_SECONDS)
        self._rates, self._at_ms = rates, at_ms
        self._history.append((at_ms, self._charged))

    def take(self, at_ms: int) -> tuple[Ints, Ints]:
        """The usage since the last time, by the second, in whole units. What is left is carried.

        Args:
            at_ms: the instant of the last `observe` as the wall clock has it: seconds are its own.

        Returns:
            The last millisecond of each second, int64[m], ascending, none after `at_ms`; and the usage of each sensor
            in each of these seconds, int64[m, n]. m is 0 until a second is over.
        """
        span_ms = 0 if self._at_ms is None else min(self._at_ms - self._begun_ms, MOST_SECONDS * _SECOND_MS)
        start_ms = at_ms - span_ms
        ends_ms = np.arange(start_ms // _SECOND_MS + 1, at_ms // _SECOND_MS + 1, dtype=np.int64) * _SECOND_MS
        if self._at_ms is None or not len(ends_ms):
            return ends_ms[:0], np.zeros((0, len(self)), np.int64)
        shares = (ends_ms - start_ms) / span_ms
        until = np.floor(self._charged * shares[:, None])
        usage = np.diff(until, axis=0, prepend=0.0).astype(np.int64)
        self._begun_ms = self._at_ms - (at_ms - int(ends_ms[-1]))
        taken = until[-1]
        self._charged, self._mean = self._charged - taken, self._mean - taken
        self._history = [(then_ms, charged - taken) for then_ms, charged in self._history]
        return ends_ms - 1, usage

    def _begin(self, rates: Floats, at_ms: int) -> None:
        """Begin anew: what the windows hold now may be from before, as much as the longest one can hold."""
        self._rates, self._at_ms = rates, at_ms
        before = self._charged - rates * (_LONGEST_MS / 1000)
        self._history = [(at_ms - _LONGEST_MS, before), (at_ms, self._charged)]

    def _charged_before(self, then_ms: int) -> Floats:
        """What was charged at the last scrape that was not later. Earlier ones are forgotten."""
        while len(self._history) > 1 and self._history[1][0] <= then_ms:
            del self._history[0]
        return self._history[0][1]
