"""The rule of one throttle, as it is written down: what the rule by columns is compared with."""

from typing import Literal

from quota.throttle_time import Slicing


def slice_ms(slicing: Slicing, owed_ms: int, window_ms: int, quota_type: str) -> int:
    """min(owed, max(cap, 3 × lead))."""
    cap_ms = slicing.caps.cap_ms(quota_type, window_ms, slicing.sample_window_ms)
    return owed_ms if cap_ms is None else min(owed_ms, max(cap_ms, 3 * slicing.lead_ms))


def is_published(slicing: Slicing, owed_ms: int, length_ms: int, left_ms: int | None, ended_ms_ago: int) -> bool:
    """Whether a violation is, of a client with so much left of its throttle; None: none is running."""
    if left_ms is None:
        is_soon = ended_ms_ago < 3 * slicing.min_hold_ms
        return owed_ms >= slicing.min_hold_ms * (2 if is_soon else 1)
    return length_ms - left_ms >= slicing.min_hold_ms and (length_ms - left_ms) * 10 >= length_ms


def check(slicing: Slicing, owed_ms: int, left_ms: int, *, at_end: bool) -> Literal["wait", "hold", "release"]:
    """What a check does."""
    if at_end:
        return "hold" if owed_ms > slicing.min_hold_ms else "release"
    return "hold" if owed_ms - left_ms >= slicing.min_hold_ms else "wait"


def edit(slicing: Slicing, owed_ms: int, left_ms: int, *, fell: bool) -> Literal["wait", "hold", "release"]:
    """What the check after an edit does."""
    if owed_ms <= 0:
        return "release"
    if owed_ms - left_ms >= slicing.min_hold_ms:
        return "hold"
    if left_ms - owed_ms >= slicing.min_hold_ms and not fell:
        return "hold" if owed_ms > slicing.min_hold_ms else "release"
    return "wait"
