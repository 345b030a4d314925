"""When looks are due, and whether those that left no record may have been taken."""

from typing import Final

from tests.faults.case import Case
from tests.faults.evidence import Row
from tests.faults.held import Held
from tests.faults.reign import Reign

_ROUNDING_MS: Final = 1


def is_end_of(case: Case, name: str, row: Row, held: Held) -> bool:
    """Whether a look was due at the end of its throttle, not ahead of it; tells if it was due at a wrong time.

    Ahead of the end, a look is due one lead before it, or at once if the throttle is shorter. When a driver takes over,
    what is nearer to its end than that, or past it, is due at once.
    """
    rules, due_ms = case.rules, row["due_ms"]
    slack_ms = rules.clock_slack_ms
    most_lead_ms = held.end_ms - held.begin_ms if rules.most_lead_ms is None else rules.most_lead_ms
    first_ms, last_ms = (max(held.end_ms - lead_ms, held.begin_ms) for lead_ms in (most_lead_ms, rules.least_lead_ms))
    is_ahead = first_ms - slack_ms <= due_ms <= last_ms + slack_ms
    is_end = abs(due_ms - held.end_ms) <= slack_ms
    at_start = due_ms > last_ms and _is_start(case, due_ms)
    text = f"{name}: due at {due_ms}; must be {first_ms} to {last_ms}, the end {held.end_ms}, or a driver's start"
    case.verdict.expect("looks", is_ahead or is_end or at_start, text)
    return bool(due_ms >= held.end_ms - (slack_ms if is_end else 0))


def was_overdue(case: Case, row: Row, held: Held) -> bool:
    """Whether a look was due at once when a driver took over, because its throttle had ended by then."""
    return row["due_ms"] >= held.end_ms and _is_start(case, row["due_ms"])


def _is_start(case: Case, due_ms: int) -> bool:
    """Whether a driver took over at this time; it says so when it has published what was left."""
    rules = case.rules
    before_ms = rules.longest_publish_ms + rules.clock_slack_ms
    return case.starts is None or any(
        -before_ms <= due_ms - start_ms <= rules.clock_slack_ms for start_ms in case.starts
    )


def watch(case: Case, reign: Reign) -> None:
    """Note which throttles a look may leave to their end during a reign."""
    for held in case.held.values():
        if not held.may_end:
            may_be_left_to_end(case, reign, held, max(held.end_ms, reign.begin_ms))


def may_be_left_to_end(case: Case, reign: Reign, held: Held, until_ms: int) -> bool:
    """Whether at some instant up to this one, at which the look may have been taken, no more was owed than was left.

    A look that finds more renews the throttle, so one that is still as it was at its end was not looked at.

    While time passes, what is left becomes less by as much; what is owed becomes less by no more, but for the instants
    at which a sample window drops out of a rate. So these instants, the first, the end and the last are all that need
    to be tried.
    """
    rules, books = case.rules, case.books
    versions = books.versions(reign.batch.quota_version, _newest_version(reign))
    is_edited = any(case.is_touched(held, version) for version in versions)
    # An edit is a look of its own, at any time, after which the throttle is left to its end.
    lead_ms = None if is_edited else rules.most_lead_ms
    first_ms = held.begin_ms if lead_ms is None else max(held.end_ms - lead_ms, held.begin_ms)
    begin_ms = max(first_ms, reign.begin_ms)
    last_ms = int(min(until_ms, reign.end_ms + rules.longest_append_ms))
    if held.may_end or begin_ms > last_ms:
        return held.may_end
    for version in versions:
        drops = (
            instant_ms + reign.begin_ms - reign.batch.evaluated_at_ms for instant_ms in books.drops(held.row, version)
        )
        for at_ms in {begin_ms, held.end_ms, last_ms, *drops}:
            if begin_ms <= at_ms <= last_ms:
                left_ms = max(held.end_ms - at_ms, 0) + rules.clock_slack_ms + _ROUNDING_MS
                held.may_end |= books.most_owed_ms(held.row, reign.instant_of(at_ms), version) <= left_ms
    return held.may_end


def _newest_version(reign: Reign) -> int | None:
    return None if reign.following is None else reign.following.quota_version
