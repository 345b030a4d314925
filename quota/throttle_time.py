"""The throttle time X of a violated quota, and the caps that slice it.

Let O be the observed rate over a window of W ms and T the bound. In these W ms the client used O · W. Waiting X ms
without any further use stretches the same use over W + X, and the rate must come down to the bound:

    O · W / (W + X) = T    ⇒    X = (O − T) / T · W

At or below the bound there is nothing to wait for and X is 0 (the bare formula would be negative, as Kafka's is).
The order of the operations and the rounding are Kafka's, because X is compared with it to the millisecond: first the
difference, then the quotient, then the product, then Java's `Math.round`.
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
"""In an array of caps: no cap."""


def cap_ms(cap: Cap, window_ms: int, sample_window_ms: int) -> int | None:
    """A cap in milliseconds; None for `none`.

    Args:
        cap: one of the words, or milliseconds.
        window_ms: W, what `window` stands for.
        sample_window_ms: one slice, what `sample_window` stands for.
    """
    if isinstance(cap, int):
        return cap
    return {"window": window_ms, "sample_window": sample_window_ms, "none": None}[cap]


def java_round(x: Floats) -> Ints:
    """Round half up to int64 as `Math.round(double)` does.

    −2.5 becomes −2, 0.49999999999999994 becomes 0, NaN becomes 0, and values beyond the range of a long
    become its limits.

    Args:
        x: float64[n].

    Returns:
        int64[n].
    """
    floor = np.floor(x)
    with np.errstate(invalid="ignore"):
        rounded = np.where(x - floor >= 0.5, floor + 1.0, floor)
        inside = np.where(np.isnan(rounded) | (np.abs(rounded) >= _LONG_LIMIT), 0.0, rounded).astype(np.int64)
    inside[rounded >= _LONG_LIMIT] = _LONG_MAX
    inside[rounded <= -_LONG_LIMIT] = -_LONG_MAX - 1
    return inside


def throttle_time_ms(observed: Floats, bound: Floats, window_ms: Ints) -> Ints:
    """X = (O − T) / T · W in whole ms, 0 where O ≤ T.

    Args:
        observed: O, float64[n], per second.
        bound: T, float64[n], per second, above 0; infinity = no bound, X = 0.
        window_ms: W, int64[n], at least 1.

    Returns:
        int64[n], never negative. May be 0 for a violation that rounds down: X < 0.5 ms.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        x = java_round((observed - bound) / bound * window_ms)
    return np.where(observed > bound, np.maximum(x, 0), 0)


def debt_time_ms(tokens: Floats, bound: Floats) -> Ints:
    """How long a bucket needs to come back to 0 tokens: Math.round(−tokens / T · 1000), 0 when not below 0.

    Args:
        tokens: float64[n].
        bound: T, float64[n], tokens per second.

    Returns:
        int64[n], never negative.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.maximum(java_round(-tokens / bound * 1000.0), 0)


@dataclass(frozen=True, slots=True)
class ThrottleCaps:
    """The longest single throttle, per quota type.

    Each is `sample_window` (one slice; Kafka's cap for request time), `window` (X ≤ W, the span the rate was measured
    over), `none` (Kafka's for byte rates) or a number of milliseconds of at least 1.
    """

    producer_byte_rate: Cap = "window"
    consumer_byte_rate: Cap = "window"
    request_percentage: Cap = "sample_window"

    def __post_init__(self) -> None:
        """Refuse what is not a cap.

        Raises:
            InvalidEngineSetting: neither one of the words nor an int ≥ 1.
        """
        for field in fields(self):
            cap = getattr(self, field.name)
            is_word = isinstance(cap, str) and cap in {"sample_window", "window", "none"}
            if not is_word and not (isinstance(cap, int) and not isinstance(cap, bool) and cap >= 1):
                requirement = "be sample_window, window, none or milliseconds of at least 1"
                name = f"max_throttle_time.{field.name}"
                raise InvalidEngineSetting(name, requirement, repr(cap))

    def cap_ms(self, quota_type: str, window_ms: int, sample_window_ms: int) -> int | None:
        """The cap of one quota type in milliseconds, None where there is none; arguments as those of `cap_ms`."""
        return cap_ms(getattr(self, quota_type), window_ms, sample_window_ms)

    def max_throttle_time_ms(self, quota_type: int, window_ms: Ints, sample_window_ms: int) -> Ints:
        """The cap of each of n violations of one quota type.

        Args:
            quota_type: position in `QUOTA_TYPES`.
            window_ms: W of each violation, int64[n].
            sample_window_ms: one slice.

        Returns:
            int64[n]; `NO_CAP` where there is none.
        """
        cap: Cap = getattr(self, QUOTA_TYPES[quota_type])
        if cap == "window":
            return window_ms
        fixed_ms = cap_ms(cap, 0, sample_window_ms)
        return np.full(len(window_ms), NO_CAP if fixed_ms is None else fixed_ms, np.int64)
