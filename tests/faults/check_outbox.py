"""The records: one row and one record for every `publish_seq`, throttles paired with releases, figures recomputed."""

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.faults.evidence import Evidence, Row
from tests.faults.verdict import Values, Verdict
from tests.quota.model import ScalarModel, Sensor

_KEY = ("cluster", "broker_id", "user", "client_id")
_FIGURES = ("observed", "bound", "window_ms", "tokens", "owed_ms")
_RECORD = (
    *("action", "cause", *_KEY, "throttle_time_ms", "throttled_until_ms", "quota_type", "sensor", *_FIGURES),
    *("decision_id", "publish_seq", "batch_id", "quota_version", "schema_version"),
)
_BY_LOOKS = ("renewed", "expired", "quota_changed")


def check_sequence(evidence: Evidence, verdict: Verdict) -> None:
    """`publish_seq` counts up by one in the table, and the topic has every row once with equal content."""
    rows = evidence.tables["throttle_events"]
    stored = [row["publish_seq"] for row in rows]
    verdict.once_each("publish_seq", range(1 + max(stored, default=-1)), stored)
    wanted: dict[Hashable, Values] = {
        row["publish_seq"]: {
            **{name: row[name] for name in _RECORD if name != "sensor"},
            "sensor": [row["sensor_user"], row["sensor_client_id"]],
            "key": [row[name] for name in _KEY],
        }
        for row in rows
    }
    verdict.same_rows("topic", wanted, ((record["publish_seq"], record) for record in evidence.records))


def check_pairs(evidence: Evidence, verdict: Verdict) -> None:
    """Each throttle of a client ends with exactly one release of the same decision; none is left."""
    begun = {(_client(row), row["decision_id"]) for row in evidence.tables["decisions"] if row["applied"]}
    running: dict[tuple[Any, ...], Row] = {}
    for row in sorted(evidence.tables["throttle_events"], key=lambda row: int(row["publish_seq"])):
        client = tuple(row[name] for name in _KEY)
        before = running.get(client)
        where = f"publish_seq {row['publish_seq']} {row['action']} {row['cause']} of {client}"
        if before is None:
            is_begin = (row["action"], row["cause"]) == ("throttle", "violation")
            is_known = (_client(row), row["decision_id"]) in begun
            verdict.expect("pairs", is_begin and is_known, f"{where}: not held, decision {row['decision_id']}")
        else:
            same = row["decision_id"] == before["decision_id"]
            verdict.expect("pairs", same, f"{where}: decision {row['decision_id']}, held by {before['decision_id']}")
        if row["action"] == "release":
            verdict.expect("pairs", row["throttle_time_ms"] == 0, f"{where}: throttle time {row['throttle_time_ms']}")
            running.pop(client, None)
        else:
            running[client] = row
    for client, row in running.items():
        verdict.tell("pairs", "lost", f"the release of {client}, held since publish_seq {row['publish_seq']}")


def check_figures(
    evidence: Evidence,
    rows: list[Row],
    decisions: list[Row],
    model: ScalarModel,
    forgotten: Mapping[Sensor, float],
    verdict: Verdict,
) -> None:
    """Recompute the records that are based on one batch.

    The violations of the batch come before the snapshot that is taken after it; a look may come before or after.

    Args:
        evidence: For the quotas.
        rows: Their rows of `throttle_events`.
        decisions: The batch's decisions.
        model: Has recorded all batches up to this one.
        forgotten: What was in the buckets that are not in the snapshot after this batch, and are full since.
        verdict: Takes what is found.
    """
    applied = {_client(row): row for row in decisions if row["applied"]}
    for row in rows:
        quotas = evidence.quotas[row["quota_version"]]
        model.load_quotas(quotas.rows, quotas.mode)
        with _remembered(forgotten):
            before = _owed(model, row)
        name = f"publish_seq {row['publish_seq']} {row['cause']}"
        if row["cause"] in _BY_LOOKS:
            _check_look(name, row, before if _agree(row, before) else _owed(model, row), verdict)
        else:
            _check_violation(name, row, applied.get(_client(row)), before, verdict)


@contextmanager
def _remembered(forgotten: Mapping[Sensor, float]) -> Iterator[None]:
    """The buckets as they were before the snapshot, for as long as the block."""
    for sensor, tokens in forgotten.items():
        sensor.tokens = tokens
    try:
        yield
    finally:
        for sensor in forgotten:
            sensor.tokens = None


def _owed(model: ScalarModel, row: Row) -> dict[str, Row]:
    return {one["quota_type"]: one for one in model.evaluate([row], row["evaluated_at_ms"])}


def _agree(row: Row, owed: Mapping[str, Row]) -> bool:
    return all(row[column] == owed[row["quota_type"]][column] for column in _FIGURES)


def _check_look(name: str, row: Row, owed: Mapping[str, Row], verdict: Verdict) -> None:
    figures = {column: owed[row["quota_type"]][column] for column in _FIGURES}
    verdict.same_rows("looks", {name: figures}, [(name, row)])
    most_ms = max(one["owed_ms"] for one in owed.values())
    verdict.expect("looks", row["owed_ms"] == most_ms, f"{name}: owed_ms must be {most_ms}; got {row['owed_ms']}")
    if row["action"] == "throttle":
        slice_ms = row["throttle_time_ms"]
        verdict.expect("looks", 0 < slice_ms <= most_ms, f"{name}: a slice of {slice_ms} ms of {most_ms} ms owed")


def _check_violation(name: str, row: Row, decision: Row | None, owed: Mapping[str, Row], verdict: Verdict) -> None:
    if decision is None:
        verdict.tell("violations", "different", f"{name}: batch {row['batch_id']} decided nothing about the client")
        return
    shared = ("quota_type", "observed", "bound", "window_ms", "throttle_time_ms", "evaluated_at_ms")
    wanted = {column: decision[column] for column in (*shared, "sensor_user", "sensor_client_id", "quota_version")}
    wanted |= {column: owed[decision["quota_type"]][column] for column in ("tokens", "owed_ms")}
    verdict.same_rows("violations", {name: wanted}, [(name, row)])


def _client(row: Row) -> tuple[str, str, str]:
    return row["broker_id"], row["user"], row["client_id"]
