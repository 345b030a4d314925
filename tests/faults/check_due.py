"""When looks are due, and whether those that left no record may have been taken."""

from typing import Final

from tests.faults.books import debt_ms, most_ms
from tests.faults.case import Case
from tests.faults.evidence import Row
from tests.faults.held import Held
from tests.faults.reign import Reign

_ROUNDING_MS: Final = 1


def is_end_of(case: Case, name: str, row: Row, held: Held) -> bool:
    """Whether a look was due at the end of its throttle, not ahead of it; tells if it was due at a wrong time.

    Ahead of the end, a look is due one lead before it, or at once if the throttle is shorter. When a driver takes over,
    what is nearer to its end than that, or past it, is due at once. A throttle may be shorter than the slack of the
    clocks: then the instant that is nearer to what the record says counts.
    """
    rules, due_ms = case.rules, row["due_ms"]
    slack_ms = rules.clock_slack_ms
    most_lead_ms = held.end_ms - held.begin_ms if rules.most_lead_ms is None else rules.most_lead_ms
    first_ms, last_ms = (max(held.end_ms - lead_ms, held.begin_ms) for lead_ms in (most_lead_ms, rules.least_lead_ms))
    is_ahead = first_ms - slack_ms <= due_ms <= last_ms + slack_ms
    ahead_distance_ms = max(first_ms - due_ms, due_ms - last_ms, 0)
    is_end = abs(due_ms - held.end_ms) <= min(slack_ms, ahead_distance_ms)
    at_start = due_ms > last_ms and _is_start(case, due_ms)
    text = f"{name}: due at {due_ms}; must be {first_ms} to {last_ms}, the end {held.end_ms}, or a driver's start"
    case.verdict.expect("looks", is_ahead or is_end or at_start, text)
    return bool(due_ms >= held.end_ms - (slack_ms if is_end else 0))


def was_taken_up(case: Case, row: Row, held: Held) -> bool:
    """Whether a look was due at once when a driver took over, because its throttle had ended by then, or was about to.

    By the slack of the clocks, one that was still running may look as if it had ended.
    """
    return row["due_ms"] >= held.end_ms - case.rules.clock_slack_ms and _is_start(case, row["due_ms"])


def _is_start(case: Case, due_ms: int) -> bool:
    """Whether a driver took over at this time; it says so when it has published what was left."""
    rules = case.rules
    before_ms = rules.longest_publish_ms + rules.clock_slack_ms
    return case.starts is None or any(
        -before_ms <= due_ms - start_ms <= rules.clock_slack_ms for start_ms in case.starts
    )


def watch(case: Case, reign: Reign) -> None:
    """Note which throttles a look may leave to their end during a reign.

    A look waits while a record is being published, and a broker that stands still makes that long. So one that was due
    ahead of the end may be taken after it, and leave the throttle to its end, which is then looked at under the next
    batch.
    """
    for held in case.held.values():
        case.take_up(held, reign.end_ms - 1)
        last_ms = (
            max(held.end_ms, reign.begin_ms) if reign.following is None else reign.end_ms + case.rules.longest_append_ms
        )
        may_be_left_to_end(case, reign, held, last_ms)


def may_be_left_to_end(case: Case, reign: Reign, held: Held, until_ms: float) -> bool:
    """Whether at some instant up to this one, at which the look may have been taken, too little more was owed.

    A look that finds more renews the throttle, so one that is still as it was at its end was not looked at.
    """
    # A batch may have pinned its quotas before an edit that looks were taken under already. Looks never go back.
    oldest = max(reign.batch.quota_version, held.row["quota_version"])
    newest = None if reign.following is None else max(reign.following.quota_version, case.newest_version, oldest)
    for version in () if held.may_end else case.books.versions(oldest, newest):
        # An edit is a look of its own, at any time, after which the throttle is left to its end.
        lead_ms = None if case.is_touched(held, version) else case.rules.most_lead_ms
        first_ms = held.begin_ms if lead_ms is None else max(held.end_ms - lead_ms, held.begin_ms)
        begin_ms = max(first_ms, reign.begin_ms)
        last_ms = int(min(until_ms, reign.end_ms + case.rules.longest_append_ms))
        if begin_ms <= last_ms:
            excess_ms = _least_excess_ms(case, reign, held, version, begin_ms, last_ms)
            if excess_ms < held.nearest_ms:
                held.nearest_ms, held.nearest_at = excess_ms, f"after batch {reign.batch.key} under quotas v{version}"
            held.may_end |= excess_ms < case.rules.min_hold_ms + case.rules.clock_slack_ms + _ROUNDING_MS
    return held.may_end


def _least_excess_ms(case: Case, reign: Reign, held: Held, version: int, begin_ms: int, last_ms: int) -> float:
    """The smallest difference between what is owed and what is left, from one instant to another.

    What is left becomes less with the time, and so does a debt: while one is larger than what is left, it stays so to
    the end. By its rate a client owes less all at once when a sample window drops out of it; else it does not owe less
    faster than the time passes either. So no other instants need to be tried. But it may also owe more all at once, if
    that sample window held little: W becomes shorter, too. So the first look counts as early as the clocks allow.
    Event time may also be counted from an earlier batch that has seen the same newest event.
    """
    books, slack_ms = case.books, case.rules.min_hold_ms + case.rules.clock_slack_ms + _ROUNDING_MS
    shift_ms = reign.begin_ms - reign.batch.evaluated_at_ms
    left_ms = max(held.end_ms - begin_ms, 0)
    early_ms = begin_ms - case.rules.clock_slack_ms
    first = (reign.instant_of(early_ms), reign.instant_of(begin_ms), reign.latest_instant_of(begin_ms))
    owed = [books.owed(held.row, instant_ms, version) for instant_ms in first]
    least_ms = min(map(most_ms, owed)) - left_ms
    if least_ms <= slack_ms:
        return least_ms
    instants = {last_ms}
    if debt_ms(owed[-1]) <= left_ms + slack_ms:
        instants |= {held.end_ms, *(drop_ms + shift_ms for drop_ms in books.drops(held.row, version))}
    others_ms = (
        most_ms(books.owed(held.row, instant_ms, version)) - max(held.end_ms - at_ms, 0)
        for at_ms in instants
        for instant_ms in {reign.instant_of(at_ms), reign.latest_instant_of(at_ms)}
        if begin_ms < at_ms <= last_ms
    )
    return min((least_ms, *others_ms))
