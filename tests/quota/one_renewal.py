"""The length of one renewal, by the rule as it is written down: what the renewals by columns are compared with."""

from quota.slicing import Slicing


def renewal_ms(slicing: Slicing, owed_ms: int, window_ms: int, quota_type: str) -> int:
    """min(owed, max(cap, 3 × lead))."""
    cap_ms = slicing.caps.cap_ms(quota_type, window_ms, slicing.sample_window_ms)
    return owed_ms if cap_ms is None else min(owed_ms, max(cap_ms, 3 * slicing.lead_ms))
