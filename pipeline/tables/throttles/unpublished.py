"""Why nothing was published for a decision: one cause, from what the tables hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pipeline.tables.address import table_uri
from pipeline.tables.port import Condition, of_epoch
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.reading.table_rows import TableRows
from schemas.throttle_record import written_ms

Cause = Literal["shadow", "no_time", "not_applied", "extension", "too_old", "told_already", "edited", "too_short"]

# A client that is held all the time has many records in a day, and mostly one a moment ago.
_LOOKED_BACK_MS: Final = (20_000, 600_000, 86_400_000)
_COLUMNS: Final = ("publish_seq", "action", "cause", "throttle_time_ms", "throttled_until_ms", "decision_id")
_BATCH: Final = ("query_id", "batch_id")


@dataclass(frozen=True, slots=True)
class Unpublished:
    """Why a decision has no record of its own.

    Attributes:
        cause: shadow: its quota is in shadow mode. no_time: X is 0 ms, rounded. not_applied: another quota type
            throttles as long or longer. extension: it made a running throttle longer, under the id of the decision that
            began that one. too_old: when it could be published. told_already: its client was held, and the end would
            not have moved clearly. edited: an edit changed its quota before it could be published. too_short: it would
            have held its client for too short a time.
        record: extension: the record that was published; told_already: the one that held the client;
            too_short: its last release, if it had one. Else None.
        age_ms: too_old: its age when its batch was collected; None if it grew too old afterwards, during a restart.
        quota_version: edited: the version that came into force. Else None.
        least_ms: too_short: how long it must have held its client; twice that soon after a `record`. Else None.
    """

    cause: Cause
    record: Mapping[str, Any] | None = None
    age_ms: int | None = None
    quota_version: int | None = None
    least_ms: int | None = None


def why_unpublished(
    root: str, quotas: QuotaTable, decision: Mapping[str, Any], max_age_ms: int, min_hold_ms: int
) -> Unpublished:
    """The reason, by the order in which the job itself decides; `too_old` where the tables tell none.

    Args:
        root: Root of the tables.
        quotas: The quota table.
        decision: A row of `decisions` whose id no record has.
        max_age_ms: `stream.max_decision_age_ms`.
        min_hold_ms: `purgatory.min_hold_ms`.
    """
    if decision["mode"] == "shadow" or not decision["applied"]:
        unapplied: Cause = "not_applied" if decision["throttle_time_ms"] else "no_time"
        return Unpublished("shadow" if decision["mode"] == "shadow" else unapplied)
    records = _records(root, decision, _LOOKED_BACK_MS[0])
    own = [row for row in records if row["cause"] == "violation" and _is_of_batch(row, decision)]
    if own:
        return Unpublished("extension", record=own[-1])
    collected_ms = _collected_ms(root, decision)
    age_ms = collected_ms - decision["evaluated_at_ms"]
    if age_ms > max_age_ms:
        return Unpublished("too_old", age_ms=age_ms)
    before = _written_by(records, collected_ms)
    for back_ms in _LOOKED_BACK_MS[1:]:
        before = before or _written_by(_records(root, decision, back_ms), collected_ms)
    if before and before[-1]["action"] == "throttle":
        return Unpublished("told_already", record=before[-1])
    from quota.slicing import SOON, TIMES_SOON  # noqa: PLC0415 - numpy, which most answers do not need

    soon = [row for row in before[-1:] if collected_ms - written_ms(row) < SOON * min_hold_ms]
    if decision["throttle_time_ms"] < min_hold_ms * (TIMES_SOON if soon else 1):
        return Unpublished("too_short", record=soon[-1] if soon else None, least_ms=min_hold_ms)
    return _edited(quotas, decision["quota_version"], collected_ms) or Unpublished("too_old")


def _records(root: str, decision: Mapping[str, Any], back_ms: int) -> list[dict[str, Any]]:
    """The records of its client from so long before it until a moment after it, by evaluation, in their order."""
    at_ms = decision["evaluated_at_ms"]
    where: list[Condition] = [
        *((name, "=", decision[name]) for name in ("broker_id", "user", "client_id")),
        ("evaluated_at_ms", ">=", at_ms - back_ms),
        ("evaluated_at_ms", "<=", at_ms + _LOOKED_BACK_MS[0]),
        of_epoch(decision.get("time_epoch") or 0),
    ]
    rows = TableRows(table_uri(root, "throttle_events")).read([*_COLUMNS, *_BATCH, "time_epoch"], where)
    epoch = decision.get("time_epoch") or 0
    return sorted((row for row in rows if (row["time_epoch"] or 0) == epoch), key=lambda row: row["publish_seq"])


def _written_by(records: Sequence[Mapping[str, Any]], at_ms: int) -> list[Mapping[str, Any]]:
    """The records that were written at an instant or before it: a row is written when its slice begins."""
    return [row for row in records if written_ms(row) <= at_ms]


def _is_of_batch(row: Mapping[str, Any], decision: Mapping[str, Any]) -> bool:
    return all(row[name] == decision[name] for name in _BATCH)


def _collected_ms(root: str, decision: Mapping[str, Any]) -> int:
    """When the driver collected its batch, by wall clock; the time of its events if that is no longer kept."""
    where: list[Condition] = [(name, "=", decision[name]) for name in _BATCH]
    found = TableRows(table_uri(root, "batches")).read(["processed_at_ms"], where)
    return int(found[0]["processed_at_ms"] if found else decision["evaluated_at_ms"])


def _edited(quotas: QuotaTable, version: int, collected_ms: int) -> Unpublished | None:
    """By the first later version that was in force within a minute of the batch; None if there is none."""
    commits = [
        commit.version
        for commit in quotas.history(None)
        if commit.version > version and commit.committed_at.timestamp() * 1_000 <= collected_ms + 60_000
    ]
    return Unpublished("edited", quota_version=min(commits)) if commits else None
