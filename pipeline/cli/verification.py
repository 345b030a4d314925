"""Prints what a check of stored decisions has found."""

from typing import Any

from pipeline.cli.options import as_iso
from pipeline.replay.verification import Verification, VerifiedDecision
from quota.replay import Difference


def verdict(found: VerifiedDecision) -> str:
    """The result for one decision: equal, or what differs."""
    recomputed = f"recomputed from {found.usage_rows} usage rows"
    if found.difference is None:
        return f"verified: {recomputed}, same row"
    return f"not verified: {recomputed}, {_difference_text(found.difference)}"


def summary(found: Verification) -> str:
    """The last line of a check of a range."""
    return (
        f"{as_iso(found.since_ms)} to {as_iso(found.until_ms)} UTC, {found.batches} batches with usage: "
        f"{found.decisions} decisions, {len(found.mismatches)} mismatches"
    )


def difference_row(difference: Difference) -> dict[str, Any]:
    """A mismatch as a row to print."""
    return {**difference.key, "difference": _difference_text(difference)}


def _difference_text(difference: Difference) -> str:
    if not difference.is_recomputed:
        return "stored, but not recomputed from usage and quotas"
    if not difference.is_stored:
        return "recomputed from usage and quotas, but not stored"
    columns = difference.columns.items()
    return "; ".join(f"{name}: stored {stored}, recomputed {again}" for name, (stored, again) in columns)
