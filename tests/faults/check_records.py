"""Every record of `throttle_events`: its figures, and whether what was owed at its instant justifies it.

The rules are those of docs/design.md, "The life of a throttle". What was owed is read from the verifier's own books.
"""

from collections.abc import Mapping
from typing import Final

from tests.faults.books import most_ms
from tests.faults.case import Case
from tests.faults.check_due import is_end_of, may_be_left_to_end, was_taken_up
from tests.faults.evidence import Row
from tests.faults.held import Held, client_of, written_ms
from tests.faults.reign import Reign

_FIGURES: Final = ("observed", "bound", "window_ms", "tokens", "owed_ms")
_SHARED: Final = ("quota_type", "observed", "bound", "window_ms", "time_epoch", "evaluated_at_ms")
_EXTENSION_PART: Final = 10
_KINDS: Final = {"renewed": "renewals", "expired": "releases", "quota_changed": "edits"}


def check_record(case: Case, reign: Reign, row: Row, decision: Row | None) -> None:
    """Check one record; afterwards its client is held, or is not held any more, as it says.

    Args:
        case: All records with a smaller `publish_seq` are checked.
        reign: Of the batch that the record is based on; the books have recorded it.
        row: Of `throttle_events`.
        decision: The batch's applied decision about the client; None without one.
    """
    client = client_of(row)
    held = case.held.get(client)
    if held is not None:
        case.take_up(held, written_ms(row), row["publish_seq"])
    name = f"publish_seq {row['publish_seq']} {row['action']} {row['cause']}"
    kind = _KINDS.get(row["cause"], "begins" if held is None else "extensions")
    with case.before_snapshot():
        owed = case.books.owed(row, row["evaluated_at_ms"], row["quota_version"])
    if row["cause"] == "violation":
        _check_violation(case, kind, name, row, decision, owed)
        _check_publication(case, kind, name, row, reign, held)
        if decision is not None:
            _check_length(case, kind, name, row, decision, held, owed)
    else:
        if not _agree(row, owed):
            owed = case.books.owed(row, row["evaluated_at_ms"], row["quota_version"])
        _check_figures(case, kind, name, row, held, owed)
        _check_instant(case, kind, name, row, reign)
        if held is not None:
            check = _check_edit if row["cause"] == "quota_changed" else _check_look
            check(case, kind, name, row, held, most_ms(owed), reign)
    written = written_ms(row)
    early = written < case.newest_written_ms - case.rules.clock_slack_ms
    case.verdict.deny("order", early, f"{name}: written at {written}, before the record before it")
    case.newest_written_ms = max(case.newest_written_ms, written)
    if row["action"] == "throttle":
        case.held[client] = Held(row)
    else:
        ended = case.held.pop(client, None)
        case.ended[client] = written if ended is None else case.end_of(ended, written)


def extends(throttle_time_ms: int, written: int, end_ms: int, min_hold_ms: int) -> bool:
    """Whether a throttle written at this time ends clearly later than one that ends at `end_ms`."""
    longer_ms = throttle_time_ms - max(end_ms - written, 0)
    return longer_ms >= min_hold_ms and longer_ms * _EXTENSION_PART >= throttle_time_ms


def _check_violation(case: Case, kind: str, name: str, row: Row, decision: Row | None, owed: Mapping[str, Row]) -> None:
    """A record of a batch says what the batch has decided."""
    if decision is None:
        text = f"{name}: batch {row['batch_id']} decided nothing about the client"
        case.verdict.tell(kind, "different", text)
        return
    wanted = {column: decision[column] for column in (*_SHARED, "sensor_user", "sensor_client_id", "quota_version")}
    wanted |= {column: owed[decision["quota_type"]][column] for column in ("tokens", "owed_ms")}
    case.verdict.same_rows(kind, {name: wanted}, [(name, row)])


def _check_publication(case: Case, kind: str, name: str, row: Row, reign: Reign, held: Held | None) -> None:
    """It is published in time, under quotas that still hold, and tells its client something new."""
    rules, written = case.rules, written_ms(row)
    before = written < reign.begin_ms - rules.clock_slack_ms
    case.verdict.deny(kind, before, f"{name}: written at {written}, before its batch was collected")
    age_ms = reign.batch.age_ms
    too_old = age_ms > rules.max_decision_age_ms
    case.verdict.deny(kind, too_old, f"{name}: published although its batch was {age_ms} ms old when it was collected")
    own, newest = row["quota_version"], case.newest_version
    if newest > own:
        standing = (case.books.standing(row, row["quota_type"], version) for version in (own, newest))
        edited = next(standing) != next(standing)
        case.verdict.deny(kind, edited, f"{name}: decided under quotas v{own}, which v{newest} has changed")
    if held is not None:
        end_ms = case.end_of(held, written)
        news = extends(row["throttle_time_ms"], written + rules.clock_slack_ms, end_ms, rules.min_hold_ms)
        case.verdict.deny(kind, not news, f"{name}: ends at {row['throttled_until_ms']}, not clearly after {end_ms}")


def _check_length(
    case: Case, kind: str, name: str, row: Row, decision: Row, held: Held | None, owed: Mapping[str, Row]
) -> None:
    """It is as long as X or what is owed, cut by the cap; and one that begins is no shorter than can be obeyed."""
    shortest_ms, longest_ms = case.slices_ms(decision, owed)
    slice_ms, deny = row["throttle_time_ms"], case.verdict.deny
    text = f"{name}: a slice of {slice_ms} ms; must be {shortest_ms} to {longest_ms}"
    deny(kind, not shortest_ms <= slice_ms <= longest_ms, text)
    if held is None:
        owes_ms = max(int(owed[decision["quota_type"]]["owed_ms"]), int(decision["throttle_time_ms"]))
        is_soon = case.begins_soon(client_of(row), written_ms(row))
        least_ms = case.rules.min_hold_ms * (2 if is_soon else 1)
        deny(kind, owes_ms < least_ms, f"{name}: {owes_ms} ms are owed, which is less than {least_ms}")


def _check_figures(case: Case, kind: str, name: str, row: Row, held: Held | None, owed: Mapping[str, Row]) -> None:
    """The figures are those of the quota type that owes most, and of its sensor."""
    wanted = {column: owed[row["quota_type"]][column] for column in _FIGURES}
    case.verdict.same_rows(kind, {name: wanted}, [(name, row)])
    text = f"{name}: owed_ms must be {most_ms(owed)}; got {row['owed_ms']}"
    case.verdict.deny(kind, row["owed_ms"] != most_ms(owed), text)
    sensors = {case.books.sensor(row, row["quota_type"], row["quota_version"])}
    if held is not None and (row["quota_type"], row["bound"]) == (held.row["quota_type"], held.row["bound"]):
        sensors.add((held.row["sensor_user"], held.row["sensor_client_id"]))  # kept while the bound is the same
    sensor = (row["sensor_user"], row["sensor_client_id"])
    case.verdict.deny(kind, sensor not in sensors, f"{name}: sensor must be one of {sorted(sensors)}; got {sensor}")


def _check_instant(case: Case, kind: str, name: str, row: Row, reign: Reign) -> None:
    """A look is evaluated at the instant of its batch plus the time since, under quotas that are not older."""
    rules, instant_ms = case.rules, reign.instant_of(written_ms(row))
    other_epoch = row["time_epoch"] != case.books.time_epoch
    case.verdict.deny(kind, other_epoch, f"{name}: time epoch must be {case.books.time_epoch}")
    earliest_ms = instant_ms - rules.longest_append_ms - rules.clock_slack_ms
    latest_ms = reign.latest_instant_of(written_ms(row)) + rules.clock_slack_ms
    in_time = earliest_ms <= row["evaluated_at_ms"] <= latest_ms
    text = f"{name}: evaluated at {row['evaluated_at_ms']}; by the time since its batch it must be {instant_ms}"
    case.verdict.deny(kind, not in_time, text)
    outdated = written_ms(row) > reign.end_ms + rules.longest_append_ms + rules.clock_slack_ms
    case.verdict.deny(kind, outdated, f"{name}: based on batch {row['batch_id']}, after the next one was decided")
    went_back = row["quota_version"] < case.newest_version
    case.verdict.deny(kind, went_back, f"{name}: quotas v{row['quota_version']} after v{case.newest_version}")
    case.newest_version = max(case.newest_version, row["quota_version"])


def _check_look(case: Case, kind: str, name: str, row: Row, held: Held, owes_ms: int, reign: Reign) -> None:
    """Ahead of its end a throttle is renewed if `min_hold_ms` more is owed than is left of it, else left to end.

    At its end it is renewed if more than `min_hold_ms` is owed, else released.
    """
    rules, deny = case.rules, case.verdict.deny
    written = written_ms(row)
    if row["due_ms"] is None:
        case.verdict.tell(kind, "different", f"{name}: no look was due")
        return
    is_end = is_end_of(case, name, row, held)
    taken_up = is_end and was_taken_up(case, row, held)
    if is_end:
        ended = taken_up or may_be_left_to_end(case, reign, held, written)
        nearest = f"at least {held.nearest_ms} ms more than was left, {held.nearest_at}"
        text = f"{name}: no look was taken before the end at {held.end_ms}, and it owed {owes_ms} ms; before, {nearest}"
        deny("looks", not ended, text)
    if row["cause"] == "expired":
        left_ms = held.end_ms - written
        deny(kind, not is_end or left_ms > rules.clock_slack_ms, f"{name}: {left_ms} ms before its end")
        deny(kind, owes_ms > rules.min_hold_ms, f"{name}: {owes_ms} ms are owed")
        deny(kind, row["throttle_time_ms"] != 0, f"{name}: a throttle time of {row['throttle_time_ms']} ms")
        return
    least_ahead_ms = max(held.end_ms - written, 0) + rules.min_hold_ms - rules.clock_slack_ms
    least_ms = least_ahead_ms if not is_end else rules.min_hold_ms + 1
    if taken_up and row["due_ms"] < held.end_ms:
        least_ms = min(least_ms, least_ahead_ms)
    deny(kind, owes_ms < least_ms, f"{name}: {owes_ms} ms are owed, which is less than {least_ms}")
    _check_slice(case, kind, name, row, owes_ms)


def _check_edit(case: Case, kind: str, name: str, row: Row, held: Held, owes_ms: int, reign: Reign) -> None:
    """Looked at because its bound or level has changed: renewed, shortened, or released if little is owed."""
    del reign
    rules, deny = case.rules, case.verdict.deny
    versions = f"v{held.row['quota_version']} and v{row['quota_version']}"
    deny(kind, not case.is_touched(held, row["quota_version"]), f"{name}: {versions} are the same for this client")
    left_ms = max(held.end_ms - written_ms(row), 0)
    least_ms = rules.min_hold_ms - rules.clock_slack_ms
    fell = case.bound_fell(held.row, row["quota_version"])
    is_shorter = left_ms - owes_ms >= least_ms and not fell
    if row["action"] == "release":
        justified = owes_ms <= 0 or (is_shorter and owes_ms <= rules.min_hold_ms)
        deny(kind, not justified, f"{name}: {owes_ms} ms are owed, {left_ms} ms are left, the bound fell: {fell}")
        return
    justified = owes_ms > 0 and (owes_ms - left_ms >= least_ms or (is_shorter and owes_ms > rules.min_hold_ms))
    deny(kind, not justified, f"{name}: {owes_ms} ms are owed, {left_ms} ms are left, the bound fell: {fell}")
    _check_slice(case, kind, name, row, owes_ms)


def _check_slice(case: Case, kind: str, name: str, row: Row, owes_ms: int) -> None:
    """A renewal is as long as what is owed, at most the cap, which is not below three leads."""
    least_ms, longest_ms = case.cut_ms(row["quota_type"], row["window_ms"], owes_ms)
    slice_ms = row["throttle_time_ms"]
    is_right = least_ms <= slice_ms <= longest_ms
    text = f"{name}: a slice of {slice_ms} ms of {owes_ms} ms owed; must be {least_ms} to {longest_ms}"
    case.verdict.deny(kind, not is_right, text)


def _agree(row: Row, owed: Mapping[str, Row]) -> bool:
    return all(row[column] == owed[row["quota_type"]][column] for column in _FIGURES)
