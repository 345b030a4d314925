"""Prints one decision: its numbers in words, its samples as a small chart."""

import math
import sys
from typing import TYPE_CHECKING, Any, Final

from pipeline.cli.explain_records import applied_text, exact_seconds, record_lines, why_nothing
from pipeline.cli.quotas.on_brokers import on_brokers_line
from pipeline.errors import printable
from pipeline.tables.quotas.diff import shown
from pipeline.tables.quotas.origin import QuotaOrigin
from pipeline.tables.throttle_history import Story
from pipeline.tables.unpublished import Unpublished
from pipeline.throttle.shown import clock_time, seconds
from quota.units import rate_text, rate_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.settings.model import Settings
    from pipeline.tables.enforced import Enforced

_BAR_WIDTH: Final = 40
_MOST_DECIMALS: Final = 16
_LEVELS: Final = (
    "",
    "its own user and client-id",
    "its user and the default client-id",
    "its user",
    "the default user and its client-id",
    "the default user and the default client-id",
    "the default user",
    "its client-id",
    "the default client-id",
)


def print_story(
    story: Story,
    settings: "Settings",
    origin: QuotaOrigin | None,
    unpublished: Unpublished | None,
    on_brokers: "Sequence[Enforced]" = (),
) -> None:
    """Print on stdout the decision, how its numbers are computed, its samples and the records published for it.

    Args:
        story: The decision and what followed.
        settings: Of the job.
        origin: The edit that set the bound, if it is known.
        unpublished: Why there are no records; None if there are.
        on_brokers: What the brokers themselves enforce now for its quota type, if kquota wrote it.
    """
    published = (
        record_lines(story.events, settings.purgatory.republish_ms)
        if unpublished is None
        else [why_nothing(unpublished, settings.stream.max_decision_age_ms)]
    )
    decision = [*_decision(story.decision), f"  T set     {origin_line(story.decision, origin)}"]
    decision += [f"  brokers   {on_brokers_line(one)}" for one in on_brokers]
    lines = [*decision, "", *_samples(story, settings.engine.sample_window_ms), "", *published]
    sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))


def origin_line(decision: dict[str, Any], origin: QuotaOrigin | None) -> str:
    """The edit that set T, in one line: version, old and new bound, when, by whom, why."""
    if origin is None:
        return f"quota table version {decision['quota_version']} can no longer be read"
    before, after = (shown(decision["quota_type"], bound) or "none" for bound in (origin.before, origin.after))
    change = f"{before} → {after}" if origin.is_exact else after
    line = f"{'by' if origin.is_exact else 'in or before'} quota table version {origin.version}: {change}"
    if origin.commit is None:
        return line
    line += f", {origin.commit.committed_at:%Y-%m-%d %H:%M:%S} UTC"
    audit = origin.commit.audit
    if audit is None:
        return f"{line}, by another tool ({origin.commit.operation})"
    return f"{line}, by {audit.actor} at {audit.host}" + (f": {audit.reason}" if audit.reason else ", no reason given")


def _in_words(decision: dict[str, Any], rate: float) -> str:
    """The size of a large byte rate, beside its number: ` (1.0 MB/s)`."""
    is_large = rate_unit(decision["quota_type"], rate)[1] > 1.0
    return f" ({rate_text(decision['quota_type'], rate)})" if is_large else ""


def _decision(row: dict[str, Any]) -> list[str]:
    unit = "% of one thread" if row["quota_type"] == "request_percentage" else "bytes/s"
    observed, bound, window_ms = row["observed"], row["bound"], row["window_ms"]
    shared = " and ".join(
        part
        for part in (
            row["sensor_user"] and f"user {row['sensor_user']}",
            row["sensor_client_id"] and f"client-id {row['sensor_client_id']}",
        )
        if part
    )
    lines = [
        f"decision {row['decision_id']}: {row['user']}/{row['client_id']} is over {row['quota_type']}",
        f"  at        {clock_time(row['evaluated_at_ms'])} UTC, batch {row['batch_id']}, {applied_text(row)}",
        f"  quota     level {row['level']} ({_LEVELS[row['level']]}), quota table version {row['quota_version']}",
        f"  sensor    {shared}: everything that shares it is counted together",
        f"  observed  O = {observed:.1f} {unit}{_in_words(row, observed)}, over W = {exact_seconds(window_ms)}",
        f"  bound     T = {bound:.1f} {unit}{_in_words(row, bound)}",
        f"  throttle  X = (O − T) / T · W = {computed_time(observed, bound, window_ms, row['raw_throttle_time_ms'])}",
    ]
    rest_ms = row["raw_throttle_time_ms"] - row["throttle_time_ms"]
    if rest_ms:
        lines.append(f"  capped    to {row['throttle_time_ms']} ms; the other {rest_ms} ms stay owed")
    return lines


def computed_time(observed: float, bound: float, window_ms: int, throttle_ms: int) -> str:
    """The formula in figures, with as many decimals as it takes to come to the same whole milliseconds."""
    for decimals in range(1, _MOST_DECIMALS + 1):
        o, t = f"{observed:.{decimals}f}", f"{bound:.{decimals}f}"
        exact_ms = (float(o) - float(t)) / float(t) * window_ms if float(t) else 0.0
        if math.floor(exact_ms + 0.5) == throttle_ms:
            break
    rounded = "" if exact_ms == throttle_ms else f" = {exact_ms:.2f} ms, rounded"
    return f"({o} − {t}) / {t} · {window_ms} ms{rounded} = {throttle_ms} ms"


def _samples(story: Story, sample_window_ms: int) -> list[str]:
    row = story.decision
    if not story.samples:
        return ["samples: no longer kept (usage is trimmed after its retention)"]
    if row["quota_type"] == "request_percentage":
        limit, of, name = row["bound"] * 1e7 * sample_window_ms / 1000, 1e6, "ms of thread time"
    else:
        limit, of, name = row["bound"] * sample_window_ms / 1000, 1e3, "kB"
    most = max(limit, *(amount for _, amount in story.samples))
    lines = [f"samples of {seconds(sample_window_ms)} ({name}; │ marks what the bound allows in one):"]
    mark = min(round(limit / most * _BAR_WIDTH), _BAR_WIDTH - 1)
    for start_ms, amount in story.samples:
        filled = round(amount / most * _BAR_WIDTH)
        bar = "".join("│" if place == mark else "█" if place < filled else " " for place in range(_BAR_WIDTH))
        lines.append(f"  {clock_time(start_ms)}  {bar} {amount / of:.1f}")
    return lines
