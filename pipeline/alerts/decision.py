"""Which alerts begin, go on and end: a function of what was so before, what is so now, and the instant. No I/O.

* nothing becomes pending when it is so;
* what is pending is forgotten when it is not, or only nearly, and fires when it has been so for `pending_ms`;
* what fires ends when it has not been so, nor nearly, for `resolve_after_ms`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pipeline.alerts.facts import Facts, Finding, Key


@dataclass(frozen=True, slots=True)
class Watched:
    """What is remembered of one key, from when it is so first until its alert has ended.

    Attributes:
        since_ms: From when on it has been so; the alert's `startsAt`.
        told_ms: When it was last told; None = it is pending.
        gone_ms: From when on it has not been so; None = it is so, or nearly. The alert's `endsAt`.
        labels: As they were when it began, so that an alert keeps its group; empty while it is pending.
        annotations: As they were when it was last told.
    """

    since_ms: int
    told_ms: int | None
    gone_ms: int | None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_firing(self) -> bool:
        """Whether its alert has begun."""
        return self.told_ms is not None


Book = Mapping[Key, Watched]
"""What is remembered of all."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to tell: an alert that has begun, or still goes on after the repeat interval, or has ended."""

    status: Literal["firing", "resolved"]
    key: Key
    watched: Watched


@dataclass(frozen=True, slots=True)
class Rules:
    """How long things take.

    Attributes:
        resolve_after_ms: An alert ends when it has not been so for this long; 0 = at once.
        repeat_ms: One that goes on is told again when it was last told so long ago.
    """

    resolve_after_ms: int
    repeat_ms: int


def decide(book: Book, facts: Facts, now_ms: int, rules: Rules) -> tuple[dict[Key, Watched], list[Change]]:
    """Judge all keys once.

    Args:
        book: What the last call returned; empty at first.
        facts: What is known now.
        now_ms: Wall clock. If it steps back, everything takes that much longer.
        rules: How long things take.

    Returns:
        What to remember, and what to tell.
    """
    findings = {finding.key: finding for finding in facts.findings}
    remembered: dict[Key, Watched] = {}
    changes: list[Change] = []
    for key in _in_order(book, findings):
        before, finding = book.get(key), findings.get(key)
        is_unknown = finding is None and key[0] in facts.unknown
        after = before if is_unknown else _next(before, finding, now_ms)
        if after is None:
            continue
        if not is_unknown and _has_ended(after, now_ms, rules):
            changes.append(Change("resolved", key, after))
            continue
        if _is_due(after, finding, now_ms, rules):
            after = _told(after, finding, now_ms)
            changes.append(Change("firing", key, after))
        remembered[key] = after
    return remembered, changes


def _in_order(book: Book, findings: Mapping[Key, Finding]) -> Iterable[Key]:
    return [*book, *(key for key in findings if key not in book)]


def _next(before: Watched | None, finding: Finding | None, now_ms: int) -> Watched | None:
    """What is remembered, before it is asked whether that is to be told; None = nothing."""
    is_so = finding is not None and finding.is_so
    if before is None or not before.is_firing:
        if finding is None or not is_so:
            return None
        return before or Watched(now_ms, None, None)
    if finding is None:
        return before if before.gone_ms is not None else replace(before, gone_ms=now_ms)
    return before if before.gone_ms is None else replace(before, gone_ms=None)


def _told(watched: Watched, finding: Finding | None, now_ms: int) -> Watched:
    if finding is None:
        return replace(watched, told_ms=now_ms)
    words = finding.words()
    labels = watched.labels if watched.is_firing else words.labels
    return Watched(watched.since_ms, now_ms, watched.gone_ms, labels, words.annotations)


def _has_ended(watched: Watched, now_ms: int, rules: Rules) -> bool:
    return watched.is_firing and watched.gone_ms is not None and now_ms - watched.gone_ms >= rules.resolve_after_ms


def _is_due(watched: Watched, finding: Finding | None, now_ms: int, rules: Rules) -> bool:
    if watched.told_ms is None:
        return finding is not None and now_ms - watched.since_ms >= finding.pending_ms
    return watched.gone_ms is None and now_ms - watched.told_ms >= rules.repeat_ms
