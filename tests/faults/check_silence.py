"""What must be published and was not: applied decisions without a record, edits that let nobody go."""

from collections.abc import Iterable, Sequence
from typing import Final

from tests.faults.books import most_ms
from tests.faults.case import Case
from tests.faults.check_due import watch
from tests.faults.check_records import check_record, extends
from tests.faults.evidence import Row
from tests.faults.held import Client, Held, client_of
from tests.faults.reign import Reign

_BATCHES_TO_SETTLE: Final = 3


def check_reign(case: Case, reign: Reign, rows: Iterable[Row], decisions: Iterable[Row]) -> None:
    """Check the records that are based on one batch, then the silence about what the batch has decided.

    Args:
        case: All records based on earlier batches are checked, and the books have recorded this batch.
        reign: Of the batch.
        rows: Its rows of `throttle_events`.
        decisions: Its decisions, as recomputed.
    """
    applied = {client_of(row): row for row in decisions if row["applied"]}
    # Violations are written at one place among the records of the batch; it is not known if there are none.
    found: dict[Client, list[Held | None]] = {client: [case.held.get(client)] for client in applied}
    published: set[Client] = set()
    for row in sorted(rows, key=lambda row: int(row["publish_seq"])):
        client = client_of(row)
        if row["cause"] == "violation" and not published:
            found = {one: [case.held.get(one)] for one in applied}
        check_record(case, reign, row, applied.get(client))
        if row["cause"] == "violation":
            published.add(client)
        elif client in found and not published:
            found[client].append(case.held.get(client))
    for client, decision in applied.items():
        case.verdict.compared["applied"] += 1
        if client not in published and not _may_be_silent(case, reign, decision, found[client]):
            text = f"the throttle of {client} that batch {reign.batch.key} has decided"
            case.verdict.tell("applied", "lost", text)
    _check_edits(case, reign)
    watch(case, reign)


def _may_be_silent(case: Case, reign: Reign, decision: Row, found: Sequence[Held | None]) -> bool:
    """Whether there is a reason to publish nothing about an applied decision.

    The client is held nearly as long already; or the batch was too old when it was published; or an edit has changed
    the client's quota by then; or the checkpoint was lost right after the batch was stored.
    """
    batch, following, rules = reign.batch, reign.following, case.rules
    slice_ms, written = decision["throttle_time_ms"], reign.begin_ms
    ends = [case.end_of(held, written) for held in found if held is not None]
    if any(not extends(slice_ms, written - rules.clock_slack_ms, end_ms) for end_ms in ends):
        return True
    newest = None if following is None else following.quota_version
    versions = case.books.versions(batch.quota_version, newest)
    standing = {case.books.standing(decision, decision["quota_type"], version) for version in versions}
    is_edited = len(standing) > 1
    if is_edited or batch.age_ms > rules.max_decision_age_ms:
        return True
    if following is None:
        return False
    # It was stored by one driver, and taken up by another one for which it was too old.
    waited = following.processed_at_ms - batch.evaluated_at_ms > rules.max_decision_age_ms
    has_started = case.starts is None or any(reign.begin_ms <= start <= reign.end_ms for start in case.starts)
    return (waited and has_started) or following.key[0] != batch.key[0]


def _check_edits(case: Case, reign: Reign) -> None:
    """An edit lets go who owes nothing any more, unless the throttle ends right away."""
    version = reign.batch.quota_version
    for held in case.held.values():
        if held.row["quota_version"] >= version:
            continue
        at_ms = reign.begin_ms
        is_long = held.end_ms - at_ms > case.rules.republish_ms + case.rules.clock_slack_ms
        is_free = is_long and case.is_touched(held, version) and not case.bound_fell(held.row, version)
        if is_free and not most_ms(case.books.owed(held.row, reign.batch.evaluated_at_ms, version)):
            held.freed_by_edit += 1
        if held.freed_by_edit == _BATCHES_TO_SETTLE:
            text = f"{client_of(held.row)} owes nothing under quotas v{version} and is still held"
            case.verdict.tell("edits", "lost", text)
            held.freed_by_edit += 1
