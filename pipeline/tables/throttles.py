"""What the tables hold about throttles: who is throttled, the story of a decision, why nothing was published."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa

from pipeline.command_line import command_text
from pipeline.errors import NotFound, TableMissing, UsageError
from pipeline.tables.port import TARGET, Condition, table_uri
from pipeline.tables.queries import StoredTable, key_list, last_throttles, predicates, recent_usage, rows_of
from pipeline.tables.quotas.history import QuotaOrigin, origin_of
from pipeline.tables.quotas.source import QuotaSource, newest_valid
from pipeline.tables.quotas.table import QuotaTable, TenantTable
from pipeline.tables.rates import broker_hold_text, broker_holds
from quota.effective import large_requests, resolved
from quota.entity import QUOTA_TYPES, Level, entity_at
from quota.errors import InvalidQuotas
from quota.snapshot import QuotaSnapshot
from quota.tenants import MEMBER_LEVEL, Tenant
from quota.throttle_time import SOON, TIMES_SOON
from quota.units import counted
from schemas.rows import DecisionRow
from schemas.throttle_record import BATCH_CAUSES, Target, ThrottleEventRow, counts, holds, written_ms

# Quota type -> the columns of `usage` whose sum it limits.
_COLUMNS_OF: Final = (["produced_bytes"], ["fetched_bytes"], ["io_time_ns", "network_time_ns"])
_MEASURES: Final = dict(zip(QUOTA_TYPES, _COLUMNS_OF, strict=True))

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Story:
    """One throttle from its decision to its release; there are no records if nothing was published.

    The samples are what the clients of its sensor used in each sample window of the rate, in bytes or nanoseconds:
    pairs (sample_start_ms, amount), oldest first.
    """

    decision: dict[str, Any]
    events: list[dict[str, Any]]
    samples: list[tuple[int, int]]


def decision_with_id(root: str, beginning: str) -> dict[str, Any]:
    """The row of `decisions` whose `decision_id` begins with a text; `NotFound` if none, `UsageError` if several do.

    The job stores it after its first record. As long as only records are stored, it is what the first of them has of
    the row; the other columns, as `level`, are None.
    """
    decisions = StoredTable(table_uri(root, "decisions"), DecisionRow)
    where: list[Condition] = [("decision_id", ">=", beginning), ("decision_id", "<=", beginning + "g")]
    found = decisions.rows(["decision_id", "evaluated_at_ms"], where)
    records = [] if found else StoredTable(table_uri(root, "throttle_events"), ThrottleEventRow).rows(None, where)
    ids = sorted({row["decision_id"] for row in found or records})
    if not ids:
        raise no_decision(root, beginning)
    if len(ids) > 1:
        shown = [*ids[:_SHOWN], *([f"{len(ids) - _SHOWN} more"] if len(ids) > _SHOWN else [])]
        message = f"several decisions begin with {beginning}: {', '.join(shown)}"
        raise UsageError(message, f"name one of them in full: {command_text('throttles', 'explain', ids[0])}")
    if records:
        first = min(records, key=lambda row: int(row["publish_seq"]))
        known = {"mode": "enforce", "asks_hold": True, "throttle_time_ms": None}
        return {name: known.get(name, first.get(name)) for name in DecisionRow.model_fields}
    # Ids are hashes, so only the instant limits which files can hold the row.
    return decisions.rows(None, [(name, "=", found[0][name]) for name in ("decision_id", "evaluated_at_ms")])[0]


def newest_decision(root: str, user: str | None, client_id: str | None) -> dict[str, Any]:
    """The newest row of `decisions` of a client, or of all client-ids of a user (`client_id` None).

    Of a client that its user is held with, it is the row of the user in the same batch. `NotFound` if there is none.

    * `user`: None = any.
    """
    decisions = StoredTable(table_uri(root, "decisions"), DecisionRow)
    found = decisions.newest(["time_epoch", "evaluated_at_ms", "batch_id"], named(user, client_id))
    if found is None:
        raise no_decision(root, "of " + "/".join([*filter(None, [user]), "*" if client_id is None else client_id]))
    return _of_user(decisions, found) or found


def _of_user(decisions: StoredTable, decision: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row of the user with which the client of a decision is held; None if there is none."""
    if decision["client_id"] is None or not decision["sensor_user"] or decision["sensor_client_id"]:
        return None
    same = ("query_id", "batch_id", "evaluated_at_ms", "broker_id", "user", "quota_type", "mode")
    where: list[Condition] = [(name, "=", decision[name]) for name in same]
    return next(iter(decisions.rows(None, [*where, ("client_id", "is", None)])), None)


def newest_throttle(root: str, user: str | None, client_id: str | None) -> dict[str, Any]:
    """The decision that began the newest throttle that holds a client: see `decision_with_id`.

    A newer decision may have begun none. For a client that was never throttled, as one in shadow mode, it is its
    newest decision: see `newest_decision`.
    """
    record = _newest_record(StoredTable(table_uri(root, "throttle_events"), ThrottleEventRow), user, client_id)
    return newest_decision(root, user, client_id) if record is None else decision_with_id(root, record["decision_id"])


def _newest_record(events: StoredTable, user: str | None, client_id: str | None) -> dict[str, Any] | None:
    where = named(user, client_id, holds=True)
    found = events.newest(["time_epoch", "evaluated_at_ms", "publish_seq"], where)
    if found is None:
        return None
    # A check may be evaluated later than the batch that is stored after it.
    later = events.rows(None, [*where, ("publish_seq", ">", found["publish_seq"])])
    return max([found, *later], key=lambda row: int(row["publish_seq"]))


def named(user: str | None, client_id: str | None, *, holds: bool = False) -> list[Condition]:
    """The conditions on the rows of a client, or of all client-ids of a user (`client_id` None); `user` None = any.

    * `holds`: Also the records of its user, where it is not among the exceptions.
    """
    of_user: list[Condition] = [] if user is None else [("user", "=", user)]
    if client_id is None:
        return [*of_user, ("client_id", "is", None)]
    return [*of_user, ("client_id", "holds" if holds and of_user else "=", client_id)]


class Held:
    """Who is held, by rows of `running_throttles`."""

    def __init__(self, running: Iterable[Mapping[str, Any]]) -> None:
        self._rows: dict[tuple[str, str | None], list[Mapping[str, Any]]] = {}
        for row in running:
            self._rows.setdefault((row["user"], row["client_id"]), []).append(row)

    @property
    def targets(self) -> Collection[tuple[str, str | None]]:
        """The names that these rows have: clients, and users without a client-id."""
        return self._rows.keys()

    @property
    def counts(self) -> tuple[int, int]:
        """How many users are held, for whichever quota types, and how many clients on their own."""
        users = sum(client_id is None for _, client_id in self._rows)
        return users, len(self._rows) - users

    def by(self, user: str, client_id: str | None) -> list[Mapping[str, Any]]:
        """The rows that hold a client, or all client-ids of a user (None)."""
        keys = dict.fromkeys([(user, client_id), (user, None)])
        return [row for key in keys for row in self._rows.get(key, ()) if holds(row, user, client_id)]

    def until_ms(self, user: str, client_id: str | None) -> int | None:
        """Until when it is held: the last end; None if it is not."""
        return max((row["throttled_until_ms"] for row in self.by(user, client_id)), default=None)


def count_text(users: int, clients: int) -> str:
    """How many are held: `1 user and 2 clients`, or `0 clients`."""
    counts = [counted(n, word) for n, word in ((users, "user"), (clients, "client")) if n]
    return " and ".join(counts) or "0 clients"


def story_of(root: str, decision: Mapping[str, Any]) -> Story:
    """The story of a row of `decisions`."""
    with ThreadPoolExecutor(1) as pool:
        events = pool.submit(_events, root, decision)
        samples = _samples(root, decision)
        in_order = sorted(events.result(), key=lambda row: row["publish_seq"])
    return Story(dict(decision), in_order, samples)


def _events(root: str, decision: Mapping[str, Any]) -> list[dict[str, Any]]:
    events = StoredTable(table_uri(root, "throttle_events"), ThrottleEventRow)
    own: Condition = ("decision_id", "=", decision["decision_id"])
    # Ids are hashes, so only the instant limits which files can hold the records. None is older than the decision.
    found = events.rows(None, [own, ("evaluated_at_ms", ">=", decision["evaluated_at_ms"])])
    epoch, newest = decision["time_epoch"], events.newest_instant()
    if newest is None or newest.time_epoch == epoch:
        return found
    known = {row["publish_seq"] for row in found}
    later = events.rows(None, [own, ("time_epoch", ">", epoch)])
    return [*found, *(row for row in later if row["publish_seq"] not in known)]


def origin_of_bound(root: str, decision: dict[str, Any]) -> QuotaOrigin | None:
    """The edit that set the bound of a decision; None if the quota table no longer has that version.

    Also None for a member of a tenant without a quota of its own: no row of the quota table has its bound.
    """
    if decision["level"] == MEMBER_LEVEL:
        return None
    entity = entity_at(Level(decision["level"]), decision["sensor_user"], decision["sensor_client_id"])
    try:
        return origin_of(QuotaTable(root), decision["quota_version"], *entity, decision["quota_type"])
    except TableMissing:
        return None


def tenant_of(root: str, decision: Mapping[str, Any]) -> Tenant | None:
    """The tenant of a decision, as it was then; None without one, or if that version can no longer be read."""
    if decision["tenant"] is None:
        return None
    quotas = _quotas_of(root, decision)
    tenants = () if quotas is None else quotas.tenants
    return next((one for one in tenants if one.name == decision["tenant"]), None)


def _quotas_of(root: str, decision: Mapping[str, Any]) -> QuotaSnapshot | None:
    """The quotas and tenants that a decision was made with; None if they can no longer be read."""
    with suppress(TableMissing, InvalidQuotas):
        return QuotaSource(QuotaTable(root)).at(decision["quota_version"], decision["tenants_version"])
    return None


def _samples(root: str, decision: Mapping[str, Any]) -> list[tuple[int, int]]:
    at_ms, window_ms = decision["evaluated_at_ms"], decision["window_ms"]
    conditions: list[Condition] = [
        ("sample_start_ms", ">=", at_ms - window_ms),
        ("sample_start_ms", "<=", at_ms),
        ("evaluated_at_ms", "<=", at_ms),
        ("evaluated_at_ms", ">=", at_ms - window_ms),
        ("time_epoch", "=", decision["time_epoch"]),
    ]
    names = {"user": "sensor_user", "client_id": "sensor_client_id", "broker_id": "broker_id"}
    conditions += [(column, "=", decision[name]) for column, name in names.items() if decision[name]]
    measures = _MEASURES[decision["quota_type"]]
    rows = StoredTable(table_uri(root, "usage")).rows(["sample_start_ms", "user", "client_id", *measures], conditions)
    apart = _in_other_sensors(root, decision, {(row["user"], row["client_id"]) for row in rows})
    sums: Counter[int] = Counter()
    for row in rows:
        if (row["user"], row["client_id"]) in apart:
            continue
        sums[row["sample_start_ms"]] += sum(row[measure] or 0 for measure in measures)
    return sorted(sums.items())


def _in_other_sensors(
    root: str, decision: Mapping[str, Any], clients: Collection[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Clients that have the names of a decision's sensor, and that the quotas in force then put into another one.

    None in shadow mode.
    """
    names = ("sensor_user", "sensor_client_id")
    if decision["mode"] == "shadow" or not clients:
        return set()
    quotas = _quotas_of(root, decision)
    if quotas is None:
        return set()
    users, client_ids = zip(*clients, strict=True)
    rows = resolved(pa.table({"user": pa.array(users), "client_id": pa.array(client_ids)}), quotas)
    of_type = (row for row in rows if row["quota_type"] == decision["quota_type"])
    return {(row["user"], row["client_id"]) for row in of_type if any(row[name] != decision[name] for name in names)}


# The records of `throttle_events` that are asked for: those of throttles that run, or the newest ones.

_MORE: Final = 8


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records are asked for; None = any. `since_ms`: written at this instant or later, by wall clock.

    With a user and a client-id these are the records that hold the client: its own, and its user's.
    """

    user: str | None = None
    client_id: str | None = None
    quota_type: str | None = None
    since_ms: int | None = None

    def conditions(self) -> list[Condition]:
        """All conditions."""
        of_user: list[Condition] = [] if self.user is None else [("user", "=", self.user)]
        found = of_user if self.client_id is None else named(self.user, self.client_id, holds=True)
        if self.quota_type is not None:
            found.append(("quota_type", "=", self.quota_type))
        if self.since_ms is not None:
            found.append(("evaluated_at_ms", ">=", self.since_ms))
        return found


ALL: Final = Wanted()


def running_throttles(root: str, now_ms: int, wanted: Wanted = ALL, min_hold_ms: int = 0) -> list[dict[str, Any]]:
    """The last record of every wanted target that is held at `now_ms` (wall clock). The latest end comes first.

    A throttle shorter than `min_hold_ms` from its first record to its end is left out, see `counts`.
    """
    events = StoredTable(table_uri(root, "throttle_events"), ThrottleEventRow)
    rows = rows_of(last_throttles(events, now_ms + 1, wanted.conditions()))
    held = [row for row in rows if counts(_since_ms(events, row, min_hold_ms), row["throttled_until_ms"], min_hold_ms)]
    return sorted(held, key=lambda row: (-row["throttled_until_ms"], row["publish_seq"]))


def all_holds(root: str, now_ms: int, wanted: Wanted = ALL, min_hold_ms: int = 0) -> list[dict[str, Any]]:
    """Who is held at `now_ms`: rows of `running_throttles`, then the clients that only their brokers hold.

    Of these the one that was held longest comes first. Each row has `held_by_brokers`: how long its brokers held it,
    in words; of a user, its client that they held longest. None = they did not, or it is not known. A client that
    kquota does not hold has only that and its names: the columns of a record are None. Brokers do not say for which
    quota, so no such client is of a wanted quota type.
    """
    running = running_throttles(root, now_ms, wanted, min_hold_ms)
    by_brokers = broker_holds(root, now_ms, wanted.user, wanted.client_id)
    if wanted.client_id is None or wanted.user is not None or not by_brokers:
        held = Held(running)
    else:  # also by their users
        held = Held(running_throttles(root, now_ms, ALL, min_hold_ms))
    found = []
    for row in running:
        of_row = (
            held_seconds
            for (user, client_id), held_seconds in by_brokers.items()
            if user == row["user"] and row["client_id"] in {None, client_id}
        )
        found.append({**row, "held_by_brokers": broker_hold_text(max(of_row, default=0))})
    if wanted.quota_type is None:
        no_record = dict.fromkeys(ThrottleEventRow.model_fields)
        found += [
            {**no_record, "user": user, "client_id": client_id, "held_by_brokers": broker_hold_text(held_seconds)}
            for (user, client_id), held_seconds in by_brokers.items()
            if not held.by(user, client_id)
        ]
    return found


def _since_ms(events: StoredTable, last: Mapping[str, Any], min_hold_ms: int) -> int:
    """When a running throttle began, by wall clock, or an instant from which on it has run for `min_hold_ms`."""
    since_ms = written_ms(last)
    if counts(since_ms, last["throttled_until_ms"], min_hold_ms):
        return since_ms
    own = _of_target(last, "cluster")
    columns = ["publish_seq", "action", "throttle_time_ms", "throttled_until_ms"]
    before = events.rows(columns, [*own, ("publish_seq", "<", last["publish_seq"])])
    for row in sorted(before, key=lambda row: -row["publish_seq"]):
        if row["action"] == "release" or row["throttled_until_ms"] < since_ms:
            break
        since_ms = written_ms(row)
    return since_ms


def _of_target(row: Mapping[str, Any], *more: str) -> list[Condition]:
    """The conditions on the records of the target of a row."""
    target = Target.of(row)
    names: list[Condition] = [(name, "=", row[name]) for name in ("broker_id", *more)]
    of_type: list[Condition] = [] if target.quota_type is None else [("quota_type", "=", target.quota_type)]
    return [*names, *named(target.user, target.client_id), *of_type]


_HELD_AT_MOST_MS: Final = 1_800_000
"""How far before its last record the begin of a hold is looked for."""
_HOLDS: Final = 1_000
"""The most holds of which more than the last record is read: those that end last."""


def holds_of(root: str, running: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """By the `publish_seq` of rows of `running_throttles` what is known of the whole hold.

    `since_ms` is when its first record was written, by wall clock; what had lapsed before the next record was written
    is another hold. `records` is their number, `most_used` the largest O / T; None if none has a bound.
    """
    own = {
        row["publish_seq"]: {
            "since_ms": written_ms(row),
            "records": 1,
            "most_used": row["observed"] / row["bound"] if row["bound"] else None,
        }
        for row in running
    }
    read = running[:_HOLDS]
    if not read:
        return own
    of_target = key_list(TARGET[1:])
    in_order = f"PARTITION BY {of_target} ORDER BY publish_seq"
    ids = predicates([("decision_id", "in", sorted({row["decision_id"] for row in read})), ("action", "=", "throttle")])
    begin_ms = min(row["evaluated_at_ms"] for row in read) - _HELD_AT_MOST_MS
    columns = (
        'publish_seq, broker_id, "user", client_id, quota_type, throttled_until_ms - throttle_time_ms AS written_ms'
    )
    found = StoredTable(table_uri(root, "throttle_events")).answer(
        f"WITH r AS (SELECT {columns}, observed / bound AS used, lag(throttled_until_ms) "  # noqa: S608 - quoted by us
        f"OVER ({in_order}) AS before_ms FROM source WHERE evaluated_at_ms >= {begin_ms} AND {ids}), "
        f"h AS (SELECT *, sum(CASE WHEN before_ms < written_ms THEN 1 ELSE 0 END) OVER ({in_order}) AS hold FROM r) "
        "SELECT max(publish_seq) AS publish_seq, min(written_ms) AS since_ms, count(*) AS records, "
        f"max(used) AS most_used FROM h GROUP BY {of_target}, hold"
    )
    names = ("since_ms", "records", "most_used")
    rows = [row for row in found.to_pylist() if row["publish_seq"] in own]
    return own | {row["publish_seq"]: {name: row[name] for name in names} for row in rows}


def recent_events(root: str, limit: int, wanted: Wanted = ALL) -> list[dict[str, Any]]:
    """The newest `limit` wanted records, newest first."""
    events = StoredTable(table_uri(root, "throttle_events"), ThrottleEventRow)
    newest_seq = events.newest_value("publish_seq")
    if newest_seq is None:
        return []
    # `publish_seq` counts up by one per record. It takes more numbers where rows were lost, or are not wanted.
    numbers = limit
    while True:
        rows = events.rows(None, [("publish_seq", ">", newest_seq - numbers), *wanted.conditions()])
        if len(rows) >= limit or numbers > newest_seq:
            return sorted(rows, key=lambda row: -row["publish_seq"])[:limit]
        numbers *= _MORE


# Why nothing was published for a decision: one cause, from what the tables hold.

Cause = Literal[
    "shadow", "no_time", "with_user", "other_type", "extension", "too_old", "told_already", "edited", "too_short"
]

_LOOKED_BACK_MS: Final = 86_400_000
_LOOKED_AHEAD_MS: Final = 20_000
_COLUMNS: Final = ("publish_seq", "action", "cause", "throttle_time_ms", "throttled_until_ms", "decision_id")
_BATCH: Final = ("query_id", "batch_id")


@dataclass(frozen=True, slots=True)
class Unpublished:
    """Why a decision has no record of its own.

    Attributes:
        cause: shadow: its quota is in shadow mode. no_time: X is 0 ms, rounded. with_user: its user is held, with
            all client-ids of the sensor. other_type: another quota type throttles as long or longer. extension: it made
            a running throttle longer, under the id of the decision that began that one. too_old: when it could be
            published. told_already: its client was held, and the end would not have moved clearly. edited: an edit
            changed its quota, or its tenant, before it could be published. too_short: it would have held its client for
            too short a time.
        record: with_user: the decision on the user; extension: the record that was published; told_already: the one
            that held the client; too_short: its last release, if it had one. Else None.
        age_ms: too_old: its age when its batch was collected; None if it grew too old afterwards, during a restart.
        edit: edited: the version that came into force, as `quotas v3`. Else None.
        least_ms: too_short: how long it must have held its client; twice that soon after a `record`. Else None.
    """

    cause: Cause
    record: Mapping[str, Any] | None = None
    age_ms: int | None = None
    edit: str | None = None
    least_ms: int | None = None


def why_unpublished(root: str, decision: Mapping[str, Any], max_age_ms: int, min_hold_ms: int) -> Unpublished:
    """Why no record has the id of a decision, in the order in which the job itself decides; else `too_old`."""
    if not decision["asks_hold"]:
        return _unasked(root, decision)
    records = _records(root, decision)
    of_batch = [row for row in records if all(row[name] == decision[name] for name in _BATCH)]
    own = [row for row in of_batch if row["cause"] in BATCH_CAUSES]
    if own:
        return Unpublished("extension", record=own[-1])
    collected_ms = _collected_ms(root, decision)
    age_ms = collected_ms - decision["evaluated_at_ms"]
    if age_ms > max_age_ms:
        return Unpublished("too_old", age_ms=age_ms)
    before = _written_by(records, collected_ms)
    if before and before[-1]["action"] == "throttle":
        return Unpublished("told_already", record=before[-1])
    soon = [row for row in before[-1:] if collected_ms - written_ms(row) < SOON * min_hold_ms]
    if max(decision["throttle_time_ms"], decision["owed_ms"]) < min_hold_ms * (TIMES_SOON if soon else 1):
        return Unpublished("too_short", record=soon[-1] if soon else None, least_ms=min_hold_ms)
    edit = _edit_after(root, decision, collected_ms)
    return Unpublished("edited", edit=edit) if edit else Unpublished("too_old")


def _edit_after(root: str, decision: Mapping[str, Any], collected_ms: int) -> str | None:
    """The first later version of a table that was in force within a minute of the batch, as `quotas v3`."""
    for table, column in ((QuotaTable, "quota_version"), (TenantTable, "tenants_version")):
        with suppress(TableMissing):
            later = (one for one in table(root).history() if one.version > decision[column])
            if edits := [one.version for one in later if one.committed_at_ms <= collected_ms + 60_000]:
                return f"{table.kind.table} v{min(edits)}"
    return None


def _unasked(root: str, decision: Mapping[str, Any]) -> Unpublished:
    if decision["mode"] == "shadow" or not decision["throttle_time_ms"]:
        return Unpublished("shadow" if decision["mode"] == "shadow" else "no_time")
    of_user = _of_user(StoredTable(table_uri(root, "decisions"), DecisionRow), decision)
    return Unpublished("other_type" if of_user is None else "with_user", record=of_user)


def _records(root: str, decision: Mapping[str, Any]) -> list[dict[str, Any]]:
    at_ms = decision["evaluated_at_ms"]
    where: list[Condition] = [
        *_of_target(decision),
        ("evaluated_at_ms", ">=", at_ms - _LOOKED_BACK_MS),
        ("evaluated_at_ms", "<=", at_ms + _LOOKED_AHEAD_MS),
        ("time_epoch", "=", decision["time_epoch"]),
    ]
    rows = StoredTable(table_uri(root, "throttle_events")).rows([*_COLUMNS, *_BATCH], where)
    return sorted(rows, key=lambda row: row["publish_seq"])


def _written_by(records: Sequence[Mapping[str, Any]], at_ms: int) -> list[Mapping[str, Any]]:
    """The records that were written at an instant or before it: a row is written when its slice begins."""
    return [row for row in records if written_ms(row) <= at_ms]


def _collected_ms(root: str, decision: Mapping[str, Any]) -> int:
    """When the driver collected its batch, by wall clock; the time of its events if that is not kept any more."""
    where: list[Condition] = [(name, "=", decision[name]) for name in _BATCH]
    found = StoredTable(table_uri(root, "batches")).rows(["processed_at_ms"], where)
    return int(found[0]["processed_at_ms"] if found else decision["evaluated_at_ms"])


def no_decision(root: str, wanted: str) -> NotFound:
    """The error of what was asked for and has no decision."""
    looked_at, give = table_uri(root, "decisions"), "give the beginning of a decision_id, or a user and client-id"
    message = f"no decision {wanted} in {looked_at}: {give}"
    return NotFound(message, f"see what is recorded: {command_text('throttles', 'list', '--all')}")


_REQUESTS: Final = ("user", "client_id", "sample_start_ms", "produced_bytes", "fetched_bytes", "request_count")


def large_requests_of(root: str, user: str, client_id: str | None, quotas: QuotaSnapshot | None = None) -> list[str]:
    """`quota.effective.large_requests` of a client in the last minutes. Without quotas in force there are none.

    Args:
        client_id: None = all clients of the user.
        quotas: Those in force, if they are known.
    """
    if quotas is None:
        try:
            table = QuotaTable(root)
            quotas = newest_valid(table, table.version())
        except (TableMissing, InvalidQuotas):
            return []
    named: list[Condition] = [("user", "=", user), *([] if client_id is None else [("client_id", "=", client_id)])]
    usage = recent_usage(table_uri(root, "usage"), _REQUESTS, named)
    return [] if usage is None else large_requests(usage, quotas)
