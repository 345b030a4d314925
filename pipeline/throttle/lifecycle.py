"""The life of a throttle, as functions of values (no clock, no I/O).

    violated ──▶ publish `throttle` ──▶ look, `lead_ms` before the end ──▶ owes longer? ──▶ publish `renewed` ─┐
                     ▲                                     ▲     │ no                                │
                     └── violated again, ends clearly later ┘    ▼                                       look again
                                                         wait for the end, look again ──▶ owes? ──▶ publish `renewed`
                                                                                       │ no
                                                                                       ▼
                                                                              publish `release`

A look happens ahead of the end because a record needs time to take effect: a renewal that is published when the
throttle ends lets the client run for one loop delay in each cycle. For an offender at k times its quota that adds up to
a leak. A slice does not forgive the rest of a debt: the next look finds it in `owed_ms`.

The end is looked at too. Usage may have arrived since the last look, and after a restart the end may have passed while
nobody was there to look. Only a client that owes no more than `republish_ms` is released.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pipeline.throttle.held import HandedOut, HeldThrottle, Publication, Reason
from quota.slicing import Slicing, ends_clearly_later
from schemas.client_key import ClientKey
from schemas.throttle_record import Action, Cause


def violations_to_publish(
    violations: Iterable[Publication], held: Mapping[ClientKey, HeldThrottle], now_ms: int
) -> list[Publication]:
    """The batch's throttles that tell a client something new.

    A client that is held hears of a violation only if its throttle would end clearly later than the end published last:
    by more than a second and by more than a tenth of the new slice. Otherwise a client that ignores its throttle would
    get a record with every batch; the look before the end renews it anyway. Such an extension keeps the decision that
    began the throttle.

    Args:
        violations: One publication per client, cause `violation`.
        held: The running throttles.
        now_ms: Steady time at which they will be written.
    """
    news = []
    for violation in violations:
        running = held.get(violation.key)
        slice_ms = violation.throttle_time_ms
        if running is None:
            news.append(violation)
        elif ends_clearly_later(now_ms + slice_ms - running.end_ms, slice_ms):
            longer = _publication(running, "throttle", violation.cause, slice_ms, violation.reason)
            news.append(replace(longer, extends=True))
    return news


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a look decided: records to publish, and throttles that now wait for their end."""

    publications: list[Publication]
    waiting: list[HeldThrottle]


def look(
    handed_out: Iterable[HandedOut],
    reasons: Mapping[ClientKey, Reason],
    now_ms: int,
    slicing: Slicing,
) -> Verdict:
    """Look at throttles shortly before they end, and at their end.

    Before the end: owes longer than what is left: renewed, ahead of time; else left to end. At the end: owes more than
    `republish_ms`: renewed; else released.

    Args:
        handed_out: The throttles whose look or end has come.
        reasons: What each of their clients owes now, by the quota type that owes most.
        now_ms: Steady time.
        slicing: Lead, caps and threshold.
    """
    publications, waiting = [], []
    for throttle, handed_out_ms in handed_out:
        reason, is_at_end = reasons[throttle.key], throttle.is_at_end()
        lateness_ms = max(handed_out_ms - throttle.due_ms, 0)
        if reason.owed_ms > (slicing.republish_ms if is_at_end else max(throttle.end_ms - now_ms, 0)):
            slice_ms = slicing.renewal_ms(reason.owed_ms, reason.window_ms, reason.quota_type)
            publications.append(
                _publication(throttle, "throttle", "renewed", slice_ms, reason, throttle.due_ms, lateness_ms)
            )
        elif is_at_end:
            publications.append(_publication(throttle, "release", "expired", 0, reason, throttle.due_ms, lateness_ms))
        else:
            waiting.append(throttle)
    return Verdict(publications, waiting)


def look_after_edit(
    throttles: Iterable[HeldThrottle],
    reasons: Mapping[ClientKey, Reason],
    now_ms: int,
    slicing: Slicing,
) -> Verdict:
    """Look at throttles whose bound, mode or level an operator has just changed.

    Nothing owed under the new quotas (also: shadow, exempt, no bound): released at once. Owes longer than what is
    left: renewed. Owes less than what is left by more than `republish_ms`: shortened to what is still owed, but
    only where the bound did not fall: a lower bound never shortens a throttle.
    """
    publications, waiting = [], []
    for throttle in throttles:
        reason = reasons[throttle.key]
        left_ms = max(throttle.end_ms - now_ms, 0)
        if reason.owed_ms <= 0:
            publications.append(_publication(throttle, "release", "quota_changed", 0, reason))
        elif reason.owed_ms > left_ms or (
            left_ms - reason.owed_ms > slicing.republish_ms and not _bound_fell(throttle.reason, reason)
        ):
            slice_ms = slicing.renewal_ms(reason.owed_ms, reason.window_ms, reason.quota_type)
            publications.append(_publication(throttle, "throttle", "quota_changed", slice_ms, reason))
        else:
            waiting.append(throttle)
    return Verdict(publications, waiting)


def _bound_fell(before: Reason, after: Reason) -> bool:
    if before.quota_type != after.quota_type or before.bound is None or after.bound is None:
        return False
    return after.bound < before.bound


def _publication(
    throttle: HeldThrottle,
    action: Action,
    cause: Cause,
    throttle_time_ms: int,
    reason: Reason,
    due_ms: int | None = None,
    lateness_ms: int | None = None,
) -> Publication:
    return Publication(
        key=throttle.key,
        action=action,
        cause=cause,
        throttle_time_ms=throttle_time_ms,
        reason=reason,
        decision_id=throttle.decision_id,
        due_ms=due_ms,
        lateness_ms=lateness_ms,
    )
