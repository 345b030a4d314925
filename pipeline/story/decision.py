"""One decision in words: its numbers, how they come about, and what followed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pipeline.story.on_brokers import on_brokers_line
from pipeline.story.records import applied_text, exact_seconds, record_lines, why_nothing
from pipeline.tables.quotas.diff import shown
from pipeline.tables.quotas.origin import QuotaOrigin
from pipeline.tables.throttles.history import Story
from pipeline.tables.throttles.unpublished import Unpublished
from pipeline.throttle.shown import clock_time, seconds
from quota.units import rate_text, rate_unit

if TYPE_CHECKING:
    from pipeline.settings.model import Settings
    from pipeline.tables.brokers.enforced import Enforced

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


@dataclass(frozen=True, slots=True)
class Words:
    """A throttle in words.

    Attributes:
        title: Who is over what.
        facts: (name, text): how its numbers come about, in order.
        samples: What the samples are, or that they are no longer kept.
        published: A line on the records, and one for each.
    """

    title: str
    facts: Sequence[tuple[str, str]]
    samples: str
    published: Sequence[str]


def words_of(
    story: Story,
    settings: "Settings",
    origin: QuotaOrigin | None,
    unpublished: Unpublished | None,
    on_brokers: "Sequence[Enforced]" = (),
) -> Words:
    """Tell the decision, how its numbers are computed, its samples and the records published for it.

    Args:
        story: The decision and what followed.
        settings: Of the job.
        origin: The edit that set the bound, if it is known.
        unpublished: Why there are no records; None if there are.
        on_brokers: What the brokers themselves enforce now for its quota type, if kquota wrote it.
    """
    published = (
        record_lines(story.events, settings.purgatory.min_hold_ms)
        if unpublished is None
        else [why_nothing(unpublished, settings.stream.max_decision_age_ms)]
    )
    row = story.decision
    facts = [*_facts(row), ("T set", origin_line(row, origin))]
    facts += [("brokers", on_brokers_line(one)) for one in on_brokers]
    title = f"decision {row['decision_id']}: {row['user']}/{row['client_id']} is over {row['quota_type']}"
    return Words(title, facts, _samples_title(story, settings.engine.sample_window_ms), published)


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


def _facts(row: dict[str, Any]) -> list[tuple[str, str]]:
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
    level = f"level {row['level']} ({_LEVELS[row['level']]}), quota table version {row['quota_version']}"
    computed = computed_time(observed, bound, window_ms, row["raw_throttle_time_ms"])
    facts = [
        ("at", f"{clock_time(row['evaluated_at_ms'])} UTC, batch {row['batch_id']}, {applied_text(row)}"),
        ("quota", level),
        ("sensor", f"{shared}: everything that shares it is counted together"),
        ("observed", f"O = {observed:.1f} {unit}{_in_words(row, observed)}, over W = {exact_seconds(window_ms)}"),
        ("bound", f"T = {bound:.1f} {unit}{_in_words(row, bound)}"),
        ("throttle", f"X = (O − T) / T · W = {computed}"),
    ]
    rest_ms = row["raw_throttle_time_ms"] - row["throttle_time_ms"]
    if rest_ms:
        facts.append(("capped", f"to {row['throttle_time_ms']} ms; the other {rest_ms} ms stay owed"))
    return facts


def computed_time(observed: float, bound: float, window_ms: int, throttle_ms: int) -> str:
    """The formula in figures, with as many decimals as it takes to come to the same whole milliseconds."""
    for decimals in range(1, _MOST_DECIMALS + 1):
        o, t = f"{observed:.{decimals}f}", f"{bound:.{decimals}f}"
        exact_ms = (float(o) - float(t)) / float(t) * window_ms if float(t) else 0.0
        if math.floor(exact_ms + 0.5) == throttle_ms:
            break
    rounded = "" if exact_ms == throttle_ms else f" = {exact_ms:.2f} ms, rounded"
    return f"({o} − {t}) / {t} · {window_ms} ms{rounded} = {throttle_ms} ms"


def _samples_title(story: Story, sample_window_ms: int) -> str:
    if not story.samples:
        return "samples: no longer kept (usage is trimmed after its retention)"
    name = "ms of thread time" if story.decision["quota_type"] == "request_percentage" else "kB"
    return f"samples of {seconds(sample_window_ms)} ({name}; │ marks what the bound allows in one):"
