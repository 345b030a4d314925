"""What the tables say about throttles: who is throttled now, and the story of one decision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.command_line import command_text
from pipeline.errors import PipelineError
from pipeline.tables.errors import TableMissing
from pipeline.tables.layout import table_uri
from pipeline.tables.port import Condition
from pipeline.tables.quotas.origin import QuotaOrigin, origin_of
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.reader import read_table
from quota.averages import SENSOR, SPAN_MS, exempt_request_percentage, throttle_times
from quota.entity import QUOTA_TYPES, Level, entity_at


class NothingMatches(PipelineError):
    """There is no decision with that id, or of that client."""

    exit_code = 3

    def __init__(self, wanted: str, looked_at: str) -> None:
        self.wanted = wanted
        super().__init__(
            f"'decision' must be the beginning of a decision_id, or a user and a client-id; got {wanted}, "
            f"which matches nothing in {looked_at}",
            f"see what is recorded: {command_text('throttles', 'list', '--all')}",
        )


class SeveralMatch(PipelineError):
    """Several decision ids begin with the given text."""

    exit_code = 2

    def __init__(self, wanted: str, matches: list[str]) -> None:
        self.matches = tuple(matches)
        super().__init__(
            f"'decision' must fit one decision_id; got {wanted}, which fits {', '.join(matches)}", "give more digits"
        )


@dataclass(frozen=True, slots=True)
class Story:
    """One throttle from its decision to its release.

    Attributes:
        decision: The row of `decisions` that started it.
        events: Its rows of `throttle_events`, in order; empty if nothing was published for it.
        samples: What the clients of its sensor used in each sample window of the rate, in bytes or nanoseconds: pairs
            (sample_start_ms, amount), oldest first.
    """

    decision: dict[str, Any]
    events: list[dict[str, Any]]
    samples: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class LastMinute:
    """What the metrics of a broker show besides the rates.

    Attributes:
        throttle_times: See `quota.averages.throttle_times`.
        exempt_percentage: Request time that is charged to nobody, in percent of one thread.
    """

    throttle_times: pa.Table
    exempt_percentage: float


def last_minute(root: str, now_ms: int) -> LastMinute:
    """Mean throttle times and exempt request time over the minute that ends at `now_ms`."""
    recent: list[Condition] = [("evaluated_at_ms", ">", now_ms - SPAN_MS)]
    columns = [*SENSOR, "throttle_time_ms", "evaluated_at_ms"]
    decisions = read_table(table_uri(root, "decisions"), columns, recent)
    usage = read_table(table_uri(root, "usage"), ["last_event_ms", "exempt_time_ns"], recent)
    return LastMinute(throttle_times(decisions, now_ms), exempt_request_percentage(usage, now_ms))


def decision_with_id(root: str, beginning: str) -> dict[str, Any]:
    """The row of `decisions` whose `decision_id` begins with a text.

    Raises:
        NothingMatches: There is none.
        SeveralMatch: There are several.
    """
    rows = _decisions(root, beginning, [("decision_id", ">=", beginning), ("decision_id", "<=", beginning + "g")])
    ids = sorted({row["decision_id"] for row in rows})
    if len(ids) > 1:
        raise SeveralMatch(beginning, ids)
    return rows[0]


def newest_decision(root: str, user: str | None, client_id: str | None) -> dict[str, Any]:
    """The newest row of `decisions` of a client; None = any user, or any client-id.

    Raises:
        NothingMatches: There is none.
    """
    names = {name: value for name, value in (("user", user), ("client_id", client_id)) if value is not None}
    return _decisions(root, "/".join(names.values()), [(name, "=", value) for name, value in names.items()])[0]


def story_of(root: str, decision: Mapping[str, Any]) -> Story:
    """The story of a row of `decisions`."""
    events = read_table(table_uri(root, "throttle_events"), None, [("decision_id", "=", decision["decision_id"])])
    return Story(dict(decision), events.sort_by("publish_seq").to_pylist(), _samples(root, decision))


def _decisions(root: str, wanted: str, where: Sequence[Condition]) -> list[dict[str, Any]]:
    """The rows of `decisions` that meet the conditions, the newest first; at least one."""
    uri = table_uri(root, "decisions")
    rows = read_table(uri, None, where)
    if not rows.num_rows:
        raise NothingMatches(wanted, uri)
    found: list[dict[str, Any]] = rows.sort_by(
        [("evaluated_at_ms", "descending"), ("batch_id", "descending")]
    ).to_pylist()
    return found


def origin_of_bound(table: QuotaTable, decision: dict[str, Any]) -> QuotaOrigin | None:
    """The edit that set the bound of a decision; None if the quota table no longer has that version."""
    entity = entity_at(Level(decision["level"]), decision["sensor_user"], decision["sensor_client_id"])
    try:
        return origin_of(table, decision["quota_version"], *entity, decision["quota_type"])
    except TableMissing:
        return None


def _samples(root: str, decision: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Usage of the sensor's clients in the window of the decision, from all batches up to that of the decision."""
    at_ms, window_ms = decision["evaluated_at_ms"], decision["window_ms"]
    conditions: list[tuple[str, str, Any]] = [
        ("sample_start_ms", ">=", at_ms - window_ms),
        ("sample_start_ms", "<=", at_ms),
        ("evaluated_at_ms", "<=", at_ms),
    ]
    if decision["sensor_user"]:
        conditions.append(("user", "=", decision["sensor_user"]))
    if decision["sensor_client_id"]:
        conditions.append(("client_id", "=", decision["sensor_client_id"]))
    if decision["broker_id"]:
        conditions.append(("broker_id", "=", decision["broker_id"]))
    rows = read_table(table_uri(root, "usage"), None, conditions)
    if not rows.num_rows:
        return []
    sums = (
        pa.table({"start": rows["sample_start_ms"], "amount": _amount(rows, decision["quota_type"])})
        .group_by("start")
        .aggregate([("amount", "sum")])
        .sort_by("start")
    )
    return [(row["start"], row["amount_sum"] or 0) for row in sums.to_pylist()]


def _amount(rows: pa.Table, quota_type: str) -> pa.ChunkedArray:
    columns = dict(zip(QUOTA_TYPES, ("produced_bytes", "fetched_bytes", "io_time_ns"), strict=True))
    amount = pc.fill_null(rows[columns[quota_type]], 0)
    if quota_type == "request_percentage":
        amount = pc.add(amount, pc.fill_null(rows["network_time_ns"], 0))
    return amount
