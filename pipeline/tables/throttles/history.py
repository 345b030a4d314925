"""What the tables say about throttles: who is throttled now, and the story of one decision."""

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from pipeline.command_line import command_text
from pipeline.errors import PipelineError
from pipeline.tables.address import table_uri
from pipeline.tables.errors import TableMissing
from pipeline.tables.port import Condition
from pipeline.tables.quotas.origin import QuotaOrigin, origin_of
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.reading.table_rows import TableRows
from quota.entity import QUOTA_TYPES, Level, entity_at

_MEASURES: Final = dict(
    zip(QUOTA_TYPES, (["produced_bytes"], ["fetched_bytes"], ["io_time_ns", "network_time_ns"]), strict=True)
)
"""Quota type -> the columns of `usage` whose sum it limits."""

_SHOWN: Final = 5


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
    """Several decision ids begin with the given text.

    Attributes:
        matches: All of them, in order.
    """

    exit_code = 2

    def __init__(self, wanted: str, matches: Sequence[str]) -> None:
        self.matches = tuple(matches)
        shown = [*matches[:_SHOWN], *([f"{len(matches) - _SHOWN} more"] if len(matches) > _SHOWN else [])]
        super().__init__(
            f"'decision' must fit one decision_id; got {wanted}, which fits {', '.join(shown)}",
            f"name one of them in full: {command_text('throttles', 'explain', matches[0])}",
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


def decision_with_id(root: str, beginning: str) -> dict[str, Any]:
    """The row of `decisions` whose `decision_id` begins with a text.

    Raises:
        NothingMatches: There is none.
        SeveralMatch: There are several.
    """
    decisions = TableRows(table_uri(root, "decisions"))
    where: list[Condition] = [("decision_id", ">=", beginning), ("decision_id", "<=", beginning + "g")]
    found = decisions.read(["decision_id", "evaluated_at_ms"], where)
    ids = sorted({row["decision_id"] for row in found})
    if not ids:
        raise NothingMatches(beginning, decisions.uri)
    if len(ids) > 1:
        raise SeveralMatch(beginning, ids)
    # Ids are hashes, so only the instant tells which files can hold the row.
    return decisions.read(None, [(name, "=", found[0][name]) for name in ("decision_id", "evaluated_at_ms")])[0]


def newest_decision(root: str, user: str | None, client_id: str | None) -> dict[str, Any]:
    """The newest row of `decisions` of a client; None = any user, or any client-id.

    Raises:
        NothingMatches: There is none.
    """
    decisions = TableRows(table_uri(root, "decisions"))
    names = {name: value for name, value in (("user", user), ("client_id", client_id)) if value is not None}
    where: list[Condition] = [(name, "=", value) for name, value in names.items()]
    found = decisions.newest(["time_epoch", "evaluated_at_ms", "batch_id"], where)
    if found is None:
        raise NothingMatches("/".join(names.values()), decisions.uri)
    return found


def story_of(root: str, decision: Mapping[str, Any]) -> Story:
    """The story of a row of `decisions`."""
    with ThreadPoolExecutor(1) as pool:
        events = pool.submit(_events, root, decision)
        samples = _samples(root, decision)
        in_order = sorted(events.result(), key=lambda row: row["publish_seq"])
    return Story(dict(decision), in_order, samples)


def _events(root: str, decision: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The records of a decision, in no order."""
    events = TableRows(table_uri(root, "throttle_events"))
    own: Condition = ("decision_id", "=", decision["decision_id"])
    # Ids are hashes, so only the instant tells which files can hold the records. None is older than the decision.
    found = events.read(None, [own, ("evaluated_at_ms", ">=", decision["evaluated_at_ms"])])
    epoch, newest = decision.get("time_epoch") or 0, events.newest_instant()
    if newest is None or newest.time_epoch == epoch:
        return found
    known = {row["publish_seq"] for row in found}
    later = events.read(None, [own, ("time_epoch", ">", epoch)])
    return [*found, *(row for row in later if row["publish_seq"] not in known)]


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
        ("evaluated_at_ms", ">=", at_ms - window_ms),
    ]
    if decision["sensor_user"]:
        conditions.append(("user", "=", decision["sensor_user"]))
    if decision["sensor_client_id"]:
        conditions.append(("client_id", "=", decision["sensor_client_id"]))
    if decision["broker_id"]:
        conditions.append(("broker_id", "=", decision["broker_id"]))
    measures = _MEASURES[decision["quota_type"]]
    rows = TableRows(table_uri(root, "usage")).read(["sample_start_ms", "time_epoch", *measures], conditions)
    sums: Counter[int] = Counter()
    for row in rows:
        if (row["time_epoch"] or 0) != (decision.get("time_epoch") or 0):
            continue
        sums[row["sample_start_ms"]] += sum(row[measure] or 0 for measure in measures)
    return sorted(sums.items())
