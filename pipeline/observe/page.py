"""Findings for people: rows of a terminal's tables, and a page. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pipeline.observe.findings import Findings, NoQuota, OverQuota, TooSmall, WouldBeHeld
from pipeline.reports.page import bar_chart, page, paragraph, table
from quota.units import age_text, rate_text

HEADINGS: Final = {
    "over_quota": "More than its quota, because it holds per broker",
    "would_be_held": "Would be throttled, if the quota held for the cluster",
    "too_small": "A bound too small to work with",
    "no_quota": "No quota",
}
NONE_FOUND: Final = {
    "over_quota": "No client got more than its quota.",
    "would_be_held": "No client would be throttled.",
    "too_small": "No bound is too small for what its clients send.",
    "no_quota": "Every client has a quota.",
}


def readable(findings: Findings, name: str) -> list[dict[str, Any]]:
    """The rows of a list for people; all rows have the same keys."""
    return [_readable(one) for one in getattr(findings, name)]


def _readable(one: OverQuota | WouldBeHeld | TooSmall | NoQuota) -> dict[str, Any]:
    who = {"client": name_of(one.user, one.client_id), "type": one.quota_type.partition("_")[0]}
    if isinstance(one, OverQuota):
        return who | {"× T": f"{one.times:.2f}", "O": rate_text(one.quota_type, one.observed), "why": one.reason}
    if isinstance(one, WouldBeHeld):
        return who | {"held": f"{one.held_share:.0%}", "longest": age_text(one.longest_wait_ms), "why": one.reason}
    suggested = rate_text(one.quota_type, one.suggested)
    if isinstance(one, TooSmall):
        return who | {"T": rate_text(one.quota_type, one.bound), "suggested": suggested, "why": one.reason}
    return who | {"p99": rate_text(one.quota_type, one.p99), "suggested": suggested, "why": one.reason}


def name_of(user: str, client_id: str) -> str:
    """A client or a sensor; `*` where it is that of all."""
    return f"{user or '*'}/{client_id or '*'}"


def findings_page(findings: Findings, about: Mapping[str, Any], next_steps: Sequence[tuple[str, str]]) -> str:
    """The page.

    Args:
        about: Facts of the observation by name: cluster, sources.
        next_steps: What each command does, and the command.
    """
    sections = {}
    for name, heading in HEADINGS.items():
        rows = readable(findings, name)
        sections[heading] = table(rows) if rows else paragraph(NONE_FOUND[name])
    over = findings.over_quota[:20]
    if over:
        series = ("times its quota", "one quota")
        bars = [(f"{name_of(one.user, one.client_id)} {one.quota_type}", (one.times, 1.0)) for one in over]
        chart = bar_chart("Times the quota, over all brokers", series, bars, lambda value: f"{value:.2f} × T")
        sections[HEADINGS["over_quota"]] = chart + sections[HEADINGS["over_quota"]]
    sections["What is not known"] = "".join(paragraph(text) for text in findings.not_known)
    sections["What next"] = "".join(paragraph(f"{what}: {command}") for what, command in next_steps)
    facts = {**about, "observed": age_text(findings.seconds * 1000), "clients": f"{findings.clients:,}"}
    return page("Observed · kquota", "What the cluster's quotas do", facts, sections)
