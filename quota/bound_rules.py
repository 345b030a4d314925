"""Which values can be the bound of a quota, and the words in which the others are refused.

The rules are those of Kafka 4.3.1's controller (`ClientQuotaControlManager`): a bound is above 0; a byte rate is not
larger than a LONG, and an integer within 1e-6. That tolerance has one side: a value just above an integer is taken, one
just below is not.

Two rules are added. A bound must be finite: Kafka stores NaN, which violates every quota and throttles by 0 ms, and an
infinite percentage, which bounds nothing. And a percentage must be below 1e19, as the constraints of the table demand.
"""

import math
from typing import Final

from quota.entity import QUOTA_TYPES, REQUEST

_LARGEST_LONG: Final = float(2**63)
_TOO_LARGE: Final = 1e19  # the upper end of the table's CHECK constraints
_FRACTION_TOLERANCE: Final = 1e-6
_LONGS: Final = frozenset(QUOTA_TYPES) - {QUOTA_TYPES[REQUEST]}


def bound_mistake(quota_type: str, value: float) -> str | None:
    """Why a value cannot be a bound; None if it can.

    Where Kafka refuses the value too, the words are Kafka's, without a full stop.

    Args:
        quota_type: one of `QUOTA_TYPES`.
        value: bytes per second, or percent of one thread.
    """
    if not math.isfinite(value):
        return f"Quota {quota_type} must be a finite number"
    if value <= 0:
        return f"Quota {quota_type} must be greater than 0"
    if value >= _TOO_LARGE and quota_type not in _LONGS:
        return f"Quota {quota_type} must be below {_TOO_LARGE:g}"
    if quota_type in _LONGS:
        if value > _LARGEST_LONG:
            return f"Proposed value for {quota_type} is too large for a LONG"
        if math.fmod(value, 1.0) > _FRACTION_TOLERANCE:
            return f"{quota_type} cannot be a fractional value"
    return None
