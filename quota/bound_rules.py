"""Which values Kafka's controller takes as the bound of a quota, and in which words it refuses the others.

`ClientQuotaControlManager` of Kafka 4.3.1: above 0, byte rates no larger than a LONG and integral within 1e-6. The
tolerance is one-sided: a value just above an integer passes, one just below does not. Beyond Kafka, a bound must be
finite: Kafka stores NaN, which violates every quota and throttles by 0 ms, and an infinite percentage, which is no
bound; and a percentage must be below 1e19, where the table's constraints end.
"""

import math
from typing import Final

from quota.entity import QUOTA_TYPES, REQUEST

_LARGEST_LONG: Final = float(2**63)
_TOO_LARGE: Final = 1e19  # the CHECK constraints of the table end here
_FRACTION_TOLERANCE: Final = 1e-6
_LONGS: Final = frozenset(QUOTA_TYPES) - {QUOTA_TYPES[REQUEST]}


def bound_mistake(quota_type: str, value: float) -> str | None:
    """Why a value can not be set as a bound; None if it can.

    The words are Kafka's where Kafka refuses it too, without a full stop.

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
