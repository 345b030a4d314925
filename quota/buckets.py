"""Token buckets: the debt of a sensor that its capped throttles have not paid off yet.

The formula
-----------
This is Kafka's `TokenBucket` (KIP-599). One token is one unit of the bound: a byte, or a percent-second. The bucket may
hold

    burst = N · (w / 1000) · T tokens        (with the defaults: what T allows in 11 s)

It is refilled with T tokens per second, never above the burst, and usage takes tokens out. It may go below zero. A
sensor that uses exactly T takes out what comes in, so its tokens do not change. One that uses more ends below zero:
that is its debt. A client that stops pays it off in

    wait = −tokens / T seconds        (`quota.throttle_time.debt_time_ms`)

Order of events
---------------
A bucket is charged per sample window, in order. First it is refilled to the end of the window, or to the instant of
evaluation if that is earlier. Then the sum of the window is taken out. The refill time never goes back. Late usage, of
windows that the rates no longer know, is charged before all others, as one sum and without a refill.

Edges
-----
* A bucket is full when its sensor is charged for the first time. If that charge is for late usage, the bucket counts as
  full at the start of the oldest window that the rates know.
* No debt is larger than ten bursts. What is above that is forgotten.
* Usage that is too old for a throttle to be published leads to no larger debt than one burst: its client was not told
  to wait. A debt that is larger already stays.
* T is the bound at the time of the charge or the look. A change of T changes nothing that is stored: from then on a
  debt is limited to ten bursts of the new T, and the time since the last charge is refilled at the new T, as in Kafka.

An example
----------
N = 11, w = 1 000, T = 10 per second, so the burst is 110. At 100 s usage of 100 leaves 10. At 101 s, refilled with 10,
usage of 150 leaves −130: the client must wait 13 s, and it has 0 tokens at 114 s.

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

from typing import Final

import numpy as np
from numpy.typing import NDArray

from quota.names import Ids
from quota.rates import Selection

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_DEBT_BURSTS: Final = 10.0
MAX_DEBT_BURSTS_OF_OLD: Final = 1.0
"""The same for usage that is too old for a throttle to be published."""
_FULL: Final = np.inf
"""Tokens of a bucket that was never charged. They count as the burst of whatever T is in force."""


class TokenBuckets:
    """The buckets of all sensors of one quota type. No lock: one caller at a time."""

    def __init__(self, num_samples: int, sample_window_ms: int) -> None:
        self._burst_seconds = num_samples * (sample_window_ms / 1000.0)
        self._tokens = np.zeros(0, np.float64)
        self._refilled_at_ms = np.zeros(0, np.int64)

    @property
    def nbytes(self) -> int:
        """The memory of all buckets, in bytes."""
        return self._tokens.nbytes + self._refilled_at_ms.nbytes

    def grow(self, capacity: int) -> None:
        """Make room for this many sensors. New buckets are full."""
        room = capacity - len(self._tokens)
        if room <= 0:
            return
        self._tokens = np.pad(self._tokens, (0, room), constant_values=_FULL)
        self._refilled_at_ms = np.pad(self._refilled_at_ms, (0, room))

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Forget the buckets of sensors that are not kept, bool[n]. The others close the gaps in their order."""
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
        """Refill, then take the amounts out.

        Args:
            sensors: m sensors, each once.
            amounts: tokens, float64[m], not negative.
            bound: T, float64[m], finite.
            refill_to_ms: the end of the window, or the instant of evaluation if that is earlier. Before the last refill
                it refills nothing.
            most_bursts: the amounts lead to no larger debt than this many bursts.
        """
        burst = self._burst_seconds * bound
        since_ms = np.maximum(refill_to_ms - self._refilled_at_ms[sensors], 0)
        tokens = np.maximum(self._tokens[sensors], burst * -MAX_DEBT_BURSTS)
        tokens += bound * (since_ms / 1000.0)
        np.minimum(tokens, burst, out=tokens)
        self._tokens[sensors] = _charged(tokens, amounts, burst, most_bursts)
        self._refilled_at_ms[sensors] += since_ms

    def charge_late(
        self, sensors: Selection, amounts: Floats, bound: Floats, full_at_ms: int, most_bursts: float = MAX_DEBT_BURSTS
    ) -> None:
        """Take the amounts of late usage out, without a refill.

        Args:
            sensors: m sensors, each once.
            amounts: tokens, float64[m], not negative.
            bound: T, float64[m], finite.
            full_at_ms: when a bucket that was never charged counts as full.
            most_bursts: as for `charge`.
        """
        burst = self._burst_seconds * bound
        tokens = self._tokens[sensors]
        self._refilled_at_ms[sensors] = np.where(tokens == _FULL, full_at_ms, self._refilled_at_ms[sensors])
        tokens = np.clip(tokens, burst * -MAX_DEBT_BURSTS, burst)
        self._tokens[sensors] = _charged(tokens, amounts, burst, most_bursts)

    def tokens_at(self, sensors: Ids, bound: Floats, now_ms: int | Ints) -> Floats:
        """The tokens of each sensor at an instant. Changes nothing.

        Args:
            sensors: int64[m]; −1 for a sensor that does not exist: its bucket is full.
            bound: T, float64[m], finite.
            now_ms: the instant, or one for each sensor, int64[m].

        Returns:
            float64[m], from minus ten bursts to one burst, plus what was refilled since.
        """
        burst = self._burst_seconds * bound
        if len(self._tokens) == 0:
            return burst
        since_ms = np.maximum(now_ms - self._refilled_at_ms[sensors], 0)
        tokens = np.maximum(self._tokens[sensors], burst * -MAX_DEBT_BURSTS) + bound * (since_ms / 1000.0)
        return np.where(sensors >= 0, np.minimum(tokens, burst), burst)

    def charged(self) -> Ids:
        """The sensors whose buckets were charged at least once."""
        return np.flatnonzero(self._tokens != _FULL)

    def below_burst(self, sensors: Ids, bound: Floats, now_ms: int) -> NDArray[np.bool_]:
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


def _charged(tokens: Floats, amounts: Floats, burst: Floats, most_bursts: float) -> Floats:
    """Tokens after a charge that leads to no larger debt than so many bursts. A larger one that was there stays."""
    least = np.minimum(tokens, burst * -most_bursts)
    return np.maximum(tokens - amounts, least)
