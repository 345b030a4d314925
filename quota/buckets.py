"""Token buckets: the debt of a sensor that its capped throttles have not yet paid off.

Kafka's `TokenBucket` (KIP-599). A bucket holds at most burst = N · (w / 1000) · T tokens, is refilled at T a second and
may go below zero; below zero, its client must wait −tokens / T seconds. It is charged per sample window, in order:
refilled to the end of the window or the instant of evaluation, whichever comes first, then charged with the sum of the
window. A refill time never goes back. Usage that comes late, for windows the rates no longer know, is charged first, as
one sum and without a refill.

A bucket starts full, when its sensor is first charged; if that is for late usage, it counts as full at the start of the
oldest window the rates know. No debt is larger than ten bursts. T is the bound at the time of the charge or the look:
a change of it changes nothing stored, so an unpaid debt is limited to ten bursts of the new T from then on, and the
time since the last charge is refilled at the new T, as in Kafka.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from quota.key_index import Ids
from quota.rates import Selection

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_DEBT_BURSTS: Final = 10.0
_FULL: Final = np.inf
"""Tokens of a bucket that was never charged; the next look cuts them down to the burst."""


class TokenBuckets:
    """The buckets of all sensors of one quota type. No lock: one caller at a time."""

    def __init__(self, num_samples: int, sample_window_ms: int) -> None:
        self._burst_seconds = num_samples * (sample_window_ms / 1000.0)
        self._tokens = np.zeros(0, np.float64)
        self._refilled_at_ms = np.zeros(0, np.int64)

    @property
    def nbytes(self) -> int:
        """Memory of all buckets."""
        return self._tokens.nbytes + self._refilled_at_ms.nbytes

    def grow(self, capacity: int) -> None:
        """Make room for sensors up to the capacity; new buckets are full."""
        room = capacity - len(self._tokens)
        if room <= 0:
            return
        self._tokens = np.pad(self._tokens, (0, room), constant_values=_FULL)
        self._refilled_at_ms = np.pad(self._refilled_at_ms, (0, room))

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Forget the buckets of sensors that are not kept; the others move together."""
        self._tokens = self._tokens[: len(kept)][kept]
        self._refilled_at_ms = self._refilled_at_ms[: len(kept)][kept]

    def charge(self, sensors: Selection, amounts: Floats, bound: Floats, refill_to_ms: int) -> None:
        """Refill, then take the amounts out.

        Args:
            sensors: m sensors, each once.
            amounts: tokens, float64[m], not negative.
            bound: T, float64[m], finite.
            refill_to_ms: the smaller of the window's end and the instant of evaluation.
        """
        burst = self._burst_seconds * bound
        since_ms = np.maximum(refill_to_ms - self._refilled_at_ms[sensors], 0)
        tokens = np.maximum(self._tokens[sensors], burst * -MAX_DEBT_BURSTS)
        tokens += bound * (since_ms / 1000.0)
        np.minimum(tokens, burst, out=tokens)
        tokens -= amounts
        self._tokens[sensors] = np.maximum(tokens, burst * -MAX_DEBT_BURSTS, out=tokens)
        self._refilled_at_ms[sensors] += since_ms

    def charge_late(self, sensors: Selection, amounts: Floats, bound: Floats, full_at_ms: int) -> None:
        """Take the amounts out without a refill; a bucket never charged before counts as full at `full_at_ms`."""
        burst = self._burst_seconds * bound
        tokens = self._tokens[sensors]
        self._refilled_at_ms[sensors] = np.where(tokens == _FULL, full_at_ms, self._refilled_at_ms[sensors])
        tokens = np.clip(tokens, burst * -MAX_DEBT_BURSTS, burst) - amounts
        self._tokens[sensors] = np.maximum(tokens, burst * -MAX_DEBT_BURSTS)

    def tokens_at(self, sensors: Ids, bound: Floats, now_ms: int) -> Floats:
        """Tokens of each sensor at an instant, float64[m]; changes nothing.

        Args:
            sensors: int64[m]; −1 = a sensor that does not exist, whose bucket is full.
            bound: T, float64[m], finite.
            now_ms: the instant.
        """
        burst = self._burst_seconds * bound
        if len(self._tokens) == 0:
            return burst
        since_ms = np.maximum(now_ms - self._refilled_at_ms[sensors], 0)
        tokens = np.maximum(self._tokens[sensors], burst * -MAX_DEBT_BURSTS) + bound * (since_ms / 1000.0)
        return np.where(sensors >= 0, np.minimum(tokens, burst), burst)

    def charged(self) -> Ids:
        """Sensors whose buckets were charged since they were made."""
        return np.flatnonzero(self._tokens != _FULL)

    def below_burst(self, sensors: Ids, bound: Floats, now_ms: int) -> NDArray[np.bool_]:
        """True for buckets that are not full at an instant; those without a bound (infinity) never become full."""
        finite = np.where(np.isfinite(bound), bound, 1.0)
        tokens = self.tokens_at(sensors, finite, now_ms)
        return np.isinf(bound) | (tokens < self._burst_seconds * finite)

    def stored(self, sensors: Ids) -> tuple[Floats, Ints]:
        """Tokens at the last refill of each sensor, and when that was."""
        return self._tokens[sensors], self._refilled_at_ms[sensors]

    def restore(self, sensors: Ids, tokens: Floats, refilled_at_ms: Ints) -> None:
        """Set some buckets to what `stored` said; all others become full."""
        self._tokens[:] = _FULL
        self._refilled_at_ms[:] = 0
        self._tokens[sensors] = tokens
        self._refilled_at_ms[sensors] = refilled_at_ms
