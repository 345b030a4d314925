"""The throttle time X of a violated quota, the caps that cut it into slices, and which slices are published.

**The formula.** Let O be the observed rate over a window of W ms, and T the bound. In these W ms the client used O · W.
If it now waits X ms and uses nothing, it has used the same amount in W + X ms. Its rate over that longer time must be
the bound:

    O · W / (W + X) = T    ⇒    O · W = T · W + T · X    ⇒    X = (O − T) / T · W

X is in ms, like W. O and T are per second, in the same unit; it cancels. At or below the bound there is nothing to wait
for and X is 0. (The formula itself is negative there, and so is Kafka's.)

The order of the operations and the rounding are Kafka's, because the results are compared to the millisecond: first the
difference, then the quotient, then the product, then Java's `Math.round`, which rounds half up.

**An example.** 1.2 MB per second against a bound of 1 MB per second, measured over 10.5 s: the client must wait 2.1 s.
At the bound it need not wait, and a violation of less than half a millisecond rounds to 0.

>>> bound = np.full(3, 1e6)
>>> throttle_time_ms(np.array([1.2e6, 1.0e6, 1.00004e6]), bound, np.array([10_500] * 3))
array([2100,    0,    0])

Half up is not what Python does, and not what adding 0.5 does:

>>> java_round(np.array([2.5, -2.5, 0.49999999999999994])), round(2.5), int(0.49999999999999994 + 0.5)
(array([ 3, -2,  0]), 2, 1)

**The rule that a throttle lives by.** The job, replays and simulations all use `Slicing`, which takes and gives whole
columns.

What is published can be obeyed. A throttle, an extension and a renewal must hold the client at least `min_hold_ms`
longer, an extension also by a tenth of its slice. What is not published stays owed: the next violation or check finds
it. A release needs no more than `min_hold_ms` owed.

A client that was released with a rest owes `min_hold_ms` again after a moment. So that it gets few records, a throttle
that begins within three times `min_hold_ms` of the end of the one before must hold it twice as long.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final

import numpy as np

from quota.arrays import Flags, Floats, Ints
from quota.entity import QUOTA_TYPES, TIE_ORDER
from quota.errors import InvalidArgument

_LONG_MAX: Final = np.iinfo(np.int64).max
_LONG_LIMIT: Final = 2.0**63

Cap = str | int  # `sample_window`, `window`, `none`, or milliseconds

NO_CAP: Final = -1  # stands for "no cap" in an array of caps


def java_round(x: Floats) -> Ints:
    """Round half up to int64, as Java's `Math.round(double)` does.

    −2.5 becomes −2, 0.49999999999999994 becomes 0 and NaN becomes 0. Values outside the range of a long become its
    limits.
    """
    floor = np.floor(x)
    with np.errstate(invalid="ignore"):
        rounded = floor + (x - floor >= 0.5)
    if (np.abs(rounded) < _LONG_LIMIT).all():
        return rounded.astype(np.int64)
    inside = np.where(np.isnan(rounded) | (np.abs(rounded) >= _LONG_LIMIT), 0.0, rounded).astype(np.int64)
    inside[rounded >= _LONG_LIMIT] = _LONG_MAX
    inside[rounded <= -_LONG_LIMIT] = -_LONG_MAX - 1
    return inside


def throttle_time_ms(observed: Floats, bound: Floats, window_ms: Ints) -> Ints:
    """X = (O − T) / T · W in whole ms, 0 where O ≤ T, and for X below 0.5 ms. T is above 0; infinity for no bound."""
    with np.errstate(over="ignore", invalid="ignore"):
        x = java_round((observed - bound) / bound * window_ms)
    return np.where(observed > bound, np.maximum(x, 0), 0)


def throttle_time_of(row: Mapping[str, Any]) -> int:
    """X of one row with `observed`, `bound` and `window_ms`; 0 without a bound (null)."""
    if row["bound"] is None:
        return 0
    figures = (np.array([row[name]]) for name in ("observed", "bound", "window_ms"))
    return int(throttle_time_ms(*figures)[0])


def debt_time_ms(tokens: Floats, bound: Floats) -> Ints:
    """How long a bucket needs to come back to 0 tokens: Math.round(−tokens / T · 1000) ms; 0 if it is not below 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.maximum(java_round(-tokens / bound * 1000.0), 0)


def owed_time_ms(observed: Floats, window_ms: Ints, tokens: Floats, bound: Floats) -> Ints:
    """The larger of X and of the time the bucket needs, in any shape; 0 where T is infinity."""
    bounded = np.isfinite(bound)
    finite = np.where(bounded, bound, 1.0)
    longer_ms = np.maximum(throttle_time_ms(observed, finite, window_ms), debt_time_ms(tokens, finite))
    return np.where(bounded, longer_ms, 0)


def type_that_owes_most(owed_ms: Ints, preferred: Ints) -> Ints:
    """The quota type that asks for the longest wait, of what n clients owe of each, int64[3, n].

    Where several ask for the same wait (also: for none) it is the preferred one. If that is not among them, it is the
    first in `TIE_ORDER`.
    """
    size = len(preferred)
    columns = np.arange(size)
    first = np.array(TIE_ORDER)[owed_ms[list(TIE_ORDER)].argmax(axis=0)] if size else preferred
    return np.where(owed_ms[preferred, columns] == owed_ms[first, columns], preferred, first)


@dataclass(frozen=True, slots=True)
class ThrottleCaps:
    """The longest single throttle, per quota type.

    Each cap is one of

    * `sample_window`: one sample window, w. Kafka's cap for request time.
    * `window`: W, the span the rate was measured over.
    * `none`: no cap. Kafka's way for byte rates.
    * a number of milliseconds, at least 1.

    What a cap cuts off is not forgiven: see docs/design.md, "Cap and debt".
    """

    producer_byte_rate: Cap = "window"
    consumer_byte_rate: Cap = "window"
    request_percentage: Cap = "sample_window"

    def __post_init__(self) -> None:
        """Refuse what is not a cap with `InvalidArgument`."""
        for field in fields(self):
            cap = getattr(self, field.name)
            is_word = isinstance(cap, str) and cap in {"sample_window", "window", "none"}
            if not is_word and not (isinstance(cap, int) and not isinstance(cap, bool) and cap >= 1):
                can_be = "it can be sample_window, window, none or milliseconds above 0"
                message = f"the cap of {field.name} is {cap!r}; {can_be}"
                raise InvalidArgument(message)

    def cap_ms(self, quota_type: str, window_ms: int, sample_window_ms: int) -> int | None:
        """The cap of one quota type in milliseconds; None if it has none."""
        cap: Cap = getattr(self, quota_type)
        words = {"window": window_ms, "sample_window": sample_window_ms, "none": None}
        return cap if isinstance(cap, int) else words[cap]

    def max_throttle_time_ms(self, quota_type: int, window_ms: Ints, sample_window_ms: int) -> Ints:
        """The cap of n violations of one type (a position in `QUOTA_TYPES`), int64[n]; `NO_CAP` if it has none."""
        name = QUOTA_TYPES[quota_type]
        if getattr(self, name) == "window":
            return window_ms
        fixed_ms = self.cap_ms(name, 0, sample_window_ms)
        return np.full(len(window_ms), NO_CAP if fixed_ms is None else fixed_ms, np.int64)


_EXTENSION_PART: Final = 10
_LONGEST_MS: Final = 1 << 52  # a throttle beyond all time is cut to this, so that its end is still a number
SOON: Final = 3
"""A throttle begins soon after the one before if less than so many times `min_hold_ms` have passed since its end."""
TIMES_SOON: Final = 2
"""A throttle that begins soon after the one before must hold its client so many times `min_hold_ms`."""


class Step(IntEnum):
    """What a check does with a running throttle."""

    WAIT = 0  # nothing is published; it is left to its end
    HOLD = 1  # a new slice of `Slicing.slices_ms` is published, from now on
    RELEASE = 2  # a release is published


@dataclass(frozen=True, slots=True)
class Slicing:
    """How throttles are cut, and which are published.

    Attributes:
        lead_ms: A check is taken this long before the end: trigger + publish lag + client lag, at least 300.
        min_hold_ms: What is published holds a client at least this much longer; at least 1.
        caps: Longest slice per quota type, before the floor of three leads.
        sample_window_ms: w.
    """

    lead_ms: int
    min_hold_ms: int
    caps: ThrottleCaps
    sample_window_ms: int

    def slices_ms(self, owed_ms: Ints, window_ms: Ints, quota_types: Ints) -> Ints:
        """The length of each slice: min(owed, max(cap, 3 × lead)), or all without a cap. W is the claim's."""
        slices_ms = np.minimum(owed_ms, _LONGEST_MS)
        for quota_type in range(len(QUOTA_TYPES)):
            rows = (quota_types == quota_type).nonzero()[0]
            if not len(rows):
                continue
            cap_ms = self.caps.max_throttle_time_ms(quota_type, window_ms[rows], self.sample_window_ms)
            longest_ms = np.maximum(cap_ms, 3 * self.lead_ms)
            slices_ms[rows] = np.where(cap_ms == NO_CAP, slices_ms[rows], np.minimum(slices_ms[rows], longest_ms))
        return slices_ms

    def first_slices_ms(self, owed_ms: Ints, capped_ms: Ints, window_ms: Ints, quota_types: Ints) -> Ints:
        """The slices of violations: as `slices_ms`, but never shorter than the capped X of the decision."""
        return np.maximum(self.slices_ms(owed_ms, window_ms, quota_types), np.minimum(capped_ms, _LONGEST_MS))

    def is_published(self, owed_ms: Ints, slice_ms: Ints, left_ms: Ints, is_held: Flags) -> Flags:
        """Which violations are published: as a throttle that begins, or as an extension of the one that runs.

        Args:
            owed_ms: the larger of X and of what the bucket owes, int64[n].
            slice_ms: length of the slice that would be published, int64[n].
            left_ms: how far away the end of the last throttle is, int64[n]; negative if it has passed.
            is_held: whether that one still runs, or waits to be checked, bool[n].
        """
        longer_ms = slice_ms - np.maximum(left_ms, 0)
        extends = (longer_ms >= self.min_hold_ms) & (longer_ms >= -(-slice_ms // _EXTENSION_PART))
        is_soon = left_ms > -SOON * self.min_hold_ms
        begins = owed_ms >= np.where(is_soon, TIMES_SOON * self.min_hold_ms, self.min_hold_ms)
        return np.where(is_held, extends, begins)

    def at_check(self, owed_ms: Ints, left_ms: Ints, at_end: Flags) -> Ints:
        """The `Step` of each of n throttles that are checked: ahead of the end, or at it.

        Args:
            owed_ms: what the client owes now, int64[n].
            left_ms: what is left of its throttle, int64[n], at least 0.
            at_end: whether the check ahead of the end has been taken, bool[n].
        """
        holds = np.where(at_end, owed_ms > self.min_hold_ms, owed_ms - left_ms >= self.min_hold_ms)
        return np.where(holds, Step.HOLD, np.where(at_end, Step.RELEASE, Step.WAIT))

    def at_edit(self, owed_ms: Ints, left_ms: Ints, bound_fell: Flags) -> Ints:
        """The `Step` of each of n throttles whose bound, mode or level an edit has changed.

        Owes nothing any more: released. Owes longer than what is left by `min_hold_ms`: renewed. Owes less than what is
        left by as much: shortened to what is owed, or released if that is no more than `min_hold_ms`; but a lower bound
        never shortens a throttle.

        Args:
            owed_ms: what the client owes under the new quotas, int64[n].
            left_ms: as for `at_check`.
            bound_fell: whether its bound is lower than before, bool[n].
        """
        shortened = (left_ms - owed_ms >= self.min_hold_ms) & ~bound_fell
        released = (owed_ms <= 0) | (shortened & (owed_ms <= self.min_hold_ms))
        holds = shortened | (owed_ms - left_ms >= self.min_hold_ms)
        return np.where(released, Step.RELEASE, np.where(holds, Step.HOLD, Step.WAIT))
