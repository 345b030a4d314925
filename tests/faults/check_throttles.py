"""Every record of `throttle_events`: its figures, when it was due, and what must be published and was not.

The rules are those of docs/design.md, "The life of a throttle". What was owed is read from the verifier's own books.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from schemas.throttle_record import BATCH_CAUSES, Target
from tests.faults.case import Case, Held, Reign, debt_ms, most_ms, written_ms
from tests.faults.evidence import Batch, Row, Version, version_of

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
    case.verdict.expect("checks", is_ahead or is_end or at_start, text)
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
    oldest = max(reign.batch.version, version_of(held.row))
    newest = None if reign.following is None else max(reign.following.version, case.newest_version, oldest)
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


def _least_excess_ms(case: Case, reign: Reign, held: Held, version: Version, begin_ms: int, last_ms: int) -> float:
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


_FIGURES: Final = ("observed", "bound", "window_ms", "tokens", "owed_ms")
_SHARED: Final = ("quota_type", "observed", "bound", "window_ms", "time_epoch", "evaluated_at_ms")
_EXTENSION_PART: Final = 10
_KINDS: Final = {"renewed": "renewals", "expired": "releases", "quota_changed": "edits", "forgiven": "forgiven"}


def check_record(case: Case, reign: Reign, row: Row, decision: Row | None) -> None:
    """Check one record; afterwards its client is held, or is not held any more, as it says.

    Args:
        case: All records with a smaller `publish_seq` are checked.
        reign: Of the batch that the record is based on.
        row: Of `throttle_events`.
        decision: The batch's decision that asks for this hold; None without one.
    """
    client = Target.of(row)
    held = case.held.get(client)
    if held is not None:
        case.take_up(held, written_ms(row), row["publish_seq"])
    name = f"publish_seq {row['publish_seq']} {row['action']} {row['cause']}"
    kind = _KINDS.get(row["cause"], "begins" if held is None else "extensions")
    of_batch = row["cause"] in BATCH_CAUSES
    begins = "violation" if decision is None else decision["cause"]
    is_right = not of_batch or row["cause"] == (begins if held is None else "extended")
    case.verdict.expect("pairs", is_right, f"{name}: its client was {'not ' if held is None else ''}held before")
    with case.before_snapshot():
        owed = case.books.owed(row, row["evaluated_at_ms"], version_of(row))
    _check_whom(case, kind, name, row, reign)
    _put_debt(owed, decision)
    if of_batch:
        _check_violation(case, kind, name, row, decision, owed)
        _check_publication(case, kind, name, row, reign, held)
        if decision is not None:
            _check_length(case, kind, name, row, decision, held, owed)
    else:
        if not _agree(row, owed):
            owed = case.books.owed(row, row["evaluated_at_ms"], version_of(row))
        if held is not None and case.books.forgives(held.row, version_of(row)):
            owed = {row["quota_type"]: owed[row["quota_type"]]}  # of the others some may be forgiven, too
        _check_figures(case, kind, name, row, held, owed)
        _check_instant(case, kind, name, row, reign)
        if held is not None:
            check = {"quota_changed": _check_edit, "forgiven": _check_forgiven}.get(row["cause"], _check_look)
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


def _put_debt(owed: dict[str, Row], decision: Row | None) -> None:
    """A debt is what the bucket owed when it was charged."""
    if decision is not None and decision["cause"] == "debt":
        owed[decision["quota_type"]].update({name: decision[name] for name in ("tokens", "owed_ms")})


def _check_whom(case: Case, kind: str, name: str, row: Row, reign: Reign) -> None:
    """A throttle holds the user, but the exceptions, where its sensor is held as a whole; else the client.

    They are those in force when it was written, maybe by an edit that the next batch is the first to name.
    """
    own, following = version_of(row), reign.following
    newest = None if following is None else max(case.newest_version, own, following.version)
    versions = case.books.versions(own, newest)
    excepted = [case.books.excepted_of(row, one) for one in versions]
    stored = _excepted_in(row)
    is_right = row["action"] == "release" or stored in excepted
    case.verdict.deny(kind, not is_right, f"{name}: the exceptions are {stored}, but should be one of {excepted}")


def _excepted_in(row: Row) -> tuple[str, ...] | None:
    return None if row["except_client_ids"] is None else tuple(row["except_client_ids"])


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
    pinned = ("sensor_user", "sensor_client_id", "quota_version", "tenants_version", "tenant", "own_bound")
    wanted = {column: decision[column] for column in (*_SHARED, *pinned)}
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
    own, newest = version_of(row), case.newest_version
    if newest > own:
        standing = (case.books.standing(row, row["quota_type"], version) for version in (own, newest))
        # A user's throttle may have other exceptions by now: those in force.
        decided, in_force = ((*terms, excepted is None) for *terms, excepted in standing)
        edited = decided != in_force or case.books.forgives(row, newest)
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
        is_soon = case.begins_soon(Target.of(row), written_ms(row))
        least_ms = case.rules.min_hold_ms * (2 if is_soon else 1)
        deny(kind, owes_ms < least_ms, f"{name}: {owes_ms} ms are owed, which is less than {least_ms}")


def _check_figures(case: Case, kind: str, name: str, row: Row, held: Held | None, owed: Mapping[str, Row]) -> None:
    """The figures are those of the quota type that owes most, and of its sensor."""
    wanted = {column: owed[row["quota_type"]][column] for column in _FIGURES}
    case.verdict.same_rows(kind, {name: wanted}, [(name, row)])
    text = f"{name}: owed_ms must be {most_ms(owed)}; got {row['owed_ms']}"
    case.verdict.deny(kind, row["owed_ms"] != most_ms(owed), text)
    sensors = {case.books.sensor(row, row["quota_type"], version_of(row))[:2]}
    if held is not None and _kept_by(row) == _kept_by(held.row):
        sensors.add((held.row["sensor_user"], held.row["sensor_client_id"]))  # kept while the bound is the same
    sensor = (row["sensor_user"], row["sensor_client_id"])
    case.verdict.deny(kind, sensor not in sensors, f"{name}: sensor must be one of {sorted(sensors)}; got {sensor}")


def _kept_by(row: Row) -> tuple[str, float]:
    """The type of a throttle, and T."""
    return row["quota_type"], row["bound"] if row["own_bound"] is None else row["own_bound"]


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
    went_back = version_of(row) < case.newest_version
    case.verdict.deny(kind, went_back, f"{name}: quotas v{row['quota_version']} after v{case.newest_version}")
    case.newest_version = max(case.newest_version, version_of(row))


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
        deny("checks", not ended, text)
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
    is_touched = case.is_touched(held, version_of(row)) or case.books.forgives(held.row, version_of(row))
    deny(kind, not is_touched, f"{name}: {versions} are the same for this client")
    left_ms = max(held.end_ms - written_ms(row), 0)
    least_ms = rules.min_hold_ms - rules.clock_slack_ms
    fell = case.bound_fell(held.row, version_of(row))
    is_shorter = left_ms - owes_ms >= least_ms and not fell
    if row["action"] == "release":
        justified = owes_ms <= 0 or (is_shorter and owes_ms <= rules.min_hold_ms)
        deny(kind, not justified, f"{name}: {owes_ms} ms are owed, {left_ms} ms are left, the bound fell: {fell}")
        return
    justified = owes_ms > 0 and (owes_ms - left_ms >= least_ms or (is_shorter and owes_ms > rules.min_hold_ms))
    same_end = abs(row["throttle_time_ms"] - left_ms) <= rules.clock_slack_ms
    if not justified and same_end and row["except_client_ids"] != held.row["except_client_ids"]:
        return  # it holds others than before, to the same end
    deny(kind, not justified, f"{name}: {owes_ms} ms are owed, {left_ms} ms are left, the bound fell: {fell}")
    _check_slice(case, kind, name, row, owes_ms)


def _check_forgiven(case: Case, kind: str, name: str, row: Row, held: Held, owes_ms: int, reign: Reign) -> None:
    """Released whatever it owes, because its quotas forgive the debts of its sensor."""
    del owes_ms, reign
    is_right = row["action"] == "release" and case.books.forgives(held.row, version_of(row))
    case.verdict.expect(kind, is_right, f"{name}: quotas v{row['quota_version']} forgive nothing")


def _check_slice(case: Case, kind: str, name: str, row: Row, owes_ms: int) -> None:
    """A renewal is as long as what is owed, at most the cap, which is not below three leads."""
    least_ms, longest_ms = case.cut_ms(row["quota_type"], row["window_ms"], owes_ms)
    slice_ms = row["throttle_time_ms"]
    is_right = least_ms <= slice_ms <= longest_ms
    text = f"{name}: a slice of {slice_ms} ms of {owes_ms} ms owed; must be {least_ms} to {longest_ms}"
    case.verdict.deny(kind, not is_right, text)


def _agree(row: Row, owed: Mapping[str, Row]) -> bool:
    return all(row[column] == owed[row["quota_type"]][column] for column in _FIGURES)


_BATCHES_TO_SETTLE: Final = 3


def check_reign(case: Case, reign: Reign, rows: Iterable[Row], decisions: Iterable[Row]) -> None:
    """Check the records that are based on one batch, then the silence about what the batch has decided."""
    asking = {Target.of(row): row for row in decisions if row["asks_hold"]}
    # Violations are written at one place among the records of the batch; it is not known if there are none.
    found: dict[Target, list[Held | None]] = {client: [case.held.get(client)] for client in asking}
    published: set[Target] = set()
    for row in sorted(rows, key=lambda row: int(row["publish_seq"])):
        client = Target.of(row)
        if row["cause"] in BATCH_CAUSES and not published:
            found = {one: [case.held.get(one)] for one in asking}
        check_record(case, reign, row, asking.get(client))
        if row["cause"] in BATCH_CAUSES:
            published.add(client)
        elif client in found and not published:
            found[client].append(case.held.get(client))
    for client, decision in asking.items():
        case.verdict.compared["holds"] += 1
        if client not in published and not _may_be_silent(case, reign, decision, found[client]):
            text = f"the throttle of {client} that batch {reign.batch.key} has decided"
            case.verdict.tell("holds", "lost", text)
    _check_edits(case, reign)
    watch(case, reign)


def _may_be_silent(case: Case, reign: Reign, decision: Row, found: Sequence[Held | None]) -> bool:
    """Whether there is a reason to publish nothing about a decision that asks for a hold.

    It would hold the client for too short a time; or the client is held nearly as long already; or the batch was too
    old when it was published; or an edit has changed the client's quota by then; or the checkpoint was lost right after
    the batch was stored.
    """
    batch, following, rules = reign.batch, reign.following, case.rules
    written, min_hold_ms = reign.begin_ms, rules.min_hold_ms
    with case.before_snapshot():
        owed = case.books.owed(decision, batch.evaluated_at_ms, batch.version)
    _put_debt(owed, decision)
    slice_ms, _ = case.slices_ms(decision, owed)
    known = [held for held in found if held is not None]
    taken_up = [replace(held) for held in known]  # by a start in this reign: the batch may have been run after it
    for held in taken_up:
        case.take_up(held, reign.end_ms)
    ends = [case.end_of(held, written) for held in (*known, *taken_up)]
    if any(start_ms >= written - rules.clock_slack_ms for start_ms in case.starts or ()):
        # The batch may have written its records, and died, before a driver took the throttle up.
        ends += [held.own_end_ms for held in known]
    if any(not extends(slice_ms, written - rules.clock_slack_ms, end_ms, min_hold_ms) for end_ms in ends):
        return True
    owes_ms = max(int(owed[decision["quota_type"]]["owed_ms"]), int(decision["throttle_time_ms"]))
    is_soon = case.may_begin_soon(Target.of(decision), written)
    if None in found and owes_ms < min_hold_ms * (2 if is_soon else 1):
        return True
    newest = None if following is None else following.version
    versions = case.books.versions(batch.version, newest)
    standing = {case.books.standing(decision, decision["quota_type"], version) for version in versions}
    is_edited = len(standing) > 1 or any(case.books.forgives(decision, version) for version in versions)
    if is_edited or batch.age_ms > rules.max_decision_age_ms:
        return True
    # It was stored by one driver, and taken up by another one for which it was too old, by its wall clock then.
    starts = case.starts or ()
    moved = [by_ms for by_ms, _ in case.moved] or [0] * len(starts)
    in_reign = (reign.begin_ms <= at_ms <= reign.end_ms for at_ms in starts)
    walls_ms = [at_ms + by_ms for at_ms, by_ms, is_in in zip(starts, moved, in_reign, strict=True) if is_in]
    if following is None:
        return _waited(case, batch, walls_ms)
    if walls_ms or case.starts is None:
        walls_ms.append(following.processed_at_ms)
    return _waited(case, batch, walls_ms) or following.key[0] != batch.key[0]


def _waited(case: Case, batch: Batch, walls_ms: Sequence[int]) -> bool:
    return any(wall_ms - batch.evaluated_at_ms > case.rules.max_decision_age_ms for wall_ms in walls_ms)


def _check_edits(case: Case, reign: Reign) -> None:
    """An edit lets go who owes nothing any more, and changes whom a throttle holds, unless it ends right away."""
    version = reign.batch.version
    for held in case.held.values():
        if version_of(held.row) >= version:
            continue
        at_ms = reign.begin_ms
        is_long = held.end_ms - at_ms > case.rules.min_hold_ms + case.rules.clock_slack_ms
        is_free = is_long and case.is_touched(held, version) and not case.bound_fell(held.row, version)
        owes_nothing = is_free and not most_ms(case.books.owed(held.row, reign.batch.evaluated_at_ms, version))
        *_, excepted = case.books.standing(held.row, held.row["quota_type"], version)
        holds_others = is_long and excepted != _excepted_in(held.row)
        if owes_nothing or holds_others or (is_long and case.books.forgives(held.row, version)):
            held.freed_by_edit += 1
        if held.freed_by_edit == _BATCHES_TO_SETTLE:
            why = f"except {excepted}" if holds_others else "owes nothing or is forgiven"
            text = f"{Target.of(held.row)}, {why} under quotas v{version}, is held as before"
            case.verdict.tell("edits", "lost", text)
            held.freed_by_edit += 1
