"""The throttle time X of a violated quota, and the caps that cut it into slices.

The formula
-----------
Let O be the observed rate over a window of W ms, and T the bound. In these W ms the client used O · W. If it now waits
X ms and uses nothing, it has used the same amount in W + X ms. Its rate over that longer time must be the bound:

    O · W / (W + X) = T    ⇒    O · W = T · W + T · X    ⇒    X = (O − T) / T · W

X is in ms, like W. O and T are per second, in the same unit; it cancels. At or below the bound there is nothing to wait
for and X is 0. (The formula itself is negative there, and so is Kafka's.)

The order of the operations and the rounding are Kafka's, because the results are compared to the millisecond: first the
difference, then the quotient, then the product, then Java's `Math.round`, which rounds half up.

An example
----------
1.2 MB per second against a bound of 1 MB per second, measured over 10.5 s: the client must wait 2.1 s. At the bound it
need not wait, and a violation of less than half a millisecond rounds to 0.

>>> bound = np.full(3, 1e6)
>>> throttle_time_ms(np.array([1.2e6, 1.0e6, 1.00004e6]), bound, np.array([10_500] * 3))
array([2100,    0,    0])

Half up is not what Python does, and not what adding 0.5 does:

>>> java_round(np.array([2.5, -2.5, 0.49999999999999994])), round(2.5), int(0.49999999999999994 + 0.5)
(array([ 3, -2,  0]), 2, 1)
"""

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from quota.entity import QUOTA_TYPES
from quota.errors import InvalidEngineSetting

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LONG_MAX: Final = np.iinfo(np.int64).max
_LONG_LIMIT: Final = 2.0**63

Cap = str | int
"""`sample_window`, `window`, `none`, or milliseconds."""

NO_CAP: Final = -1
"""Stands for "no cap" in an array of caps."""


def cap_ms(cap: Cap, window_ms: int, sample_window_ms: int) -> int | None:
    """A cap in milliseconds; None for `none`.

    Args:
        cap: one of the words, or milliseconds.
        window_ms: W, which is the cap `window`.
        sample_window_ms: w, which is the cap `sample_window`.
    """
    if isinstance(cap, int):
        return cap
    return {"window": window_ms, "sample_window": sample_window_ms, "none": None}[cap]


def java_round(x: Floats) -> Ints:
    """Round half up to int64, as Java's `Math.round(double)` does.

    −2.5 becomes −2, 0.49999999999999994 becomes 0 and NaN becomes 0. Values outside the range of a long become its
    limits.

    Args:
        x: float64[n].

    Returns:
        int64[n].
    """
    floor = np.floor(x)
    with np.errstate(invalid="ignore"):
        rounded = floor + (x - floor >= 0.5)
    if (np.abs(rounded) < _LONG_LIMIT).all():
        exact: Ints = rounded.astype(np.int64)
        return exact
    inside = np.where(np.isnan(rounded) | (np.abs(rounded) >= _LONG_LIMIT), 0.0, rounded).astype(np.int64)
    inside[rounded >= _LONG_LIMIT] = _LONG_MAX
    inside[rounded <= -_LONG_LIMIT] = -_LONG_MAX - 1
    return inside


def throttle_time_ms(observed: Floats, bound: Floats, window_ms: Ints) -> Ints:
    """X = (O − T) / T · W in whole ms, 0 where O ≤ T.

    Args:
        observed: O per second, float64[n].
        bound: T per second, float64[n], above 0; infinity for no bound, and then X = 0.
        window_ms: W, int64[n], at least 1.

    Returns:
        int64[n], never negative. It can be 0 for a violation: X below 0.5 ms is rounded down.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        x = java_round((observed - bound) / bound * window_ms)
    return np.where(observed > bound, np.maximum(x, 0), 0)


def debt_time_ms(tokens: Floats, bound: Floats) -> Ints:
    """How long a bucket needs to come back to 0 tokens: Math.round(−tokens / T · 1000) ms; 0 if it is not below 0.

    Args:
        tokens: float64[n].
        bound: T, tokens per second, float64[n].

    Returns:
        int64[n], never negative.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.maximum(java_round(-tokens / bound * 1000.0), 0)


def owed_time_ms(observed: Floats, window_ms: Ints, tokens: Floats, bound: Floats) -> Ints:
    """How long clients must wait, by rate and bucket: the larger of X and of the time the bucket needs.

    Args:
        observed: O per second; float64 of any shape, which all arguments share.
        window_ms: W, int64.
        tokens: what the bucket holds, float64; 0 if no debt is carried.
        bound: T per second, float64; infinity = no bound, nothing is owed.

    Returns:
        int64 of the same shape, never negative.
    """
    bounded = np.isfinite(bound)
    finite = np.where(bounded, bound, 1.0)
    longer_ms = np.maximum(throttle_time_ms(observed, finite, window_ms), debt_time_ms(tokens, finite))
    return np.where(bounded, longer_ms, 0)


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
        """Refuse what is not a cap.

        Raises:
            InvalidEngineSetting: a cap is neither one of the words nor an int of at least 1.
        """
        for field in fields(self):
            cap = getattr(self, field.name)
            is_word = isinstance(cap, str) and cap in {"sample_window", "window", "none"}
            if not is_word and not (isinstance(cap, int) and not isinstance(cap, bool) and cap >= 1):
                requirement = "be sample_window, window, none or milliseconds of at least 1"
                name = f"max_throttle_time.{field.name}"
                raise InvalidEngineSetting(name, requirement, repr(cap))

    def cap_ms(self, quota_type: str, window_ms: int, sample_window_ms: int) -> int | None:
        """The cap of one quota type in milliseconds; None if it has none. The arguments are those of `cap_ms`."""
        return cap_ms(getattr(self, quota_type), window_ms, sample_window_ms)

    def max_throttle_time_ms(self, quota_type: int, window_ms: Ints, sample_window_ms: int) -> Ints:
        """The cap of each of n violations of one quota type.

        Args:
            quota_type: position in `QUOTA_TYPES`.
            window_ms: W of each violation, int64[n].
            sample_window_ms: w.

        Returns:
            int64[n]; `NO_CAP` if the type has none.
        """
        cap: Cap = getattr(self, QUOTA_TYPES[quota_type])
        if cap == "window":
            return window_ms
        fixed_ms = cap_ms(cap, 0, sample_window_ms)
        return np.full(len(window_ms), NO_CAP if fixed_ms is None else fixed_ms, np.int64)
