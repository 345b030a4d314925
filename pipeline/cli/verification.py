"""What a check of stored decisions has found, in words."""

from datetime import UTC, datetime
from typing import Any

from pipeline.replay.verification import Verification, VerifiedDecision
from quota.comparison import Difference


def verdict(found: VerifiedDecision) -> str:
    """One decision: the same, or what differs."""
    recomputed = f"recomputed from {found.usage_rows} usage rows"
    if found.difference is None:
        return f"verified: {recomputed}, same row"
    return f"not verified: {recomputed}, {_what(found.difference)}"


def summary(found: Verification) -> str:
    """A range: the line everything ends with."""
    ends = (f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}" for ms in (found.since_ms, found.until_ms))
    return (
        f"{' to '.join(ends)} UTC, {found.batches} batches with usage: "
        f"{found.decisions} decisions, {len(found.mismatches)} mismatches"
    )


def difference_row(difference: Difference) -> dict[str, Any]:
    """A mismatch as a row to print."""
    return {**difference.key, "difference": _what(difference)}


def _what(difference: Difference) -> str:
    if not difference.is_recomputed:
        return "stored, but usage and quotas do not come to it"
    if not difference.is_stored:
        return "usage and quotas come to it, but it is not stored"
    columns = difference.columns.items()
    return "; ".join(f"{name}: stored {stored}, recomputed {again}" for name, (stored, again) in columns)
