"""Throttles and reasons with every field set, to be overridden where a test cares."""

from typing import Any

import pyarrow as pa

from pipeline.throttle.shapes import CLIENTS, DUE, HELD, PUBLICATIONS, REASONS, Publication, Reason
from schemas.names import ClientKey
from schemas.throttle_record import ThrottleRecord

ALICE = ClientKey("", "alice", "etl")
BOB = ClientKey("", "bob", "")


def reason(**overrides: Any) -> Reason:
    figures: dict[str, Any] = {
        "quota_type": "producer_byte_rate",
        "sensor_user": "alice",
        "sensor_client_id": "etl",
        "observed": 2_000.0,
        "bound": 1_000.0,
        "window_ms": 10_000,
        "tokens": -500.0,
        "owed_ms": 0,
        "level": 1,
    }
    return Reason(**{**figures, **overrides})


def violation(key: ClientKey = ALICE, throttle_time_ms: int = 1_000, **overrides: Any) -> Publication:
    return Publication(
        key=key,
        action="throttle",
        cause="violation",
        throttle_time_ms=throttle_time_ms,
        reason=overrides.pop("reason", reason()),
        decision_id=overrides.pop("decision_id", "first"),
        **overrides,
    )


def reasons(*some: Reason) -> pa.Table:
    """Reasons by columns, of `REASONS`."""
    return pa.Table.from_pylist([{name: getattr(one, name) for name in REASONS.names} for one in some], REASONS)


def publications(*some: Publication) -> pa.Table:
    """Publications by columns, of `PUBLICATIONS`."""
    others = [name for name in PUBLICATIONS.names if name not in (*CLIENTS.names, *REASONS.names)]
    rows = [
        {
            **one.key._asdict(),
            **{name: getattr(one.reason, name) for name in REASONS.names},
            **{name: getattr(one, name) for name in others},
        }
        for one in some
    ]
    return pa.Table.from_pylist(rows, PUBLICATIONS)


def due(key: ClientKey = ALICE, end_ms: int = 10_000, popped_ms: int = 0, **overrides: Any) -> pa.Table:
    """One running throttle whose check or end has come, of `DUE`; its figures are those of `reason()`."""
    figures = {name: value for name, value in publications(violation(key)).to_pylist()[0].items() if name in HELD.names}
    fields = {"due_ms": end_ms - 300, "client": 0, "popped_ms": popped_ms, "end_ms": end_ms}
    return pa.Table.from_pylist([figures | fields | overrides], DUE)


def record(publish_seq: int = 1, until_ms: int = 5_000, **changes: Any) -> ThrottleRecord:
    fields: dict[str, Any] = {
        "action": "throttle",
        "cluster": "c",
        "broker_id": "",
        "user": "alice",
        "client_id": "etl",
        "throttle_time_ms": 1_000,
        "throttled_until_ms": until_ms,
        "quota_type": "producer_byte_rate",
        "sensor": ("alice", "etl"),
        "observed": 2.0,
        "bound": 1.0,
        "window_ms": 10_000,
        "tokens": None,
        "owed_ms": 1_000,
        "cause": "violation",
        "decision_id": "d",
        "publish_seq": publish_seq,
        "batch_id": 1,
        "quota_version": 1,
    }
    return ThrottleRecord(**fields | changes)


def release(publish_seq: int, **changes: Any) -> ThrottleRecord:
    return record(publish_seq, action="release", throttle_time_ms=0, **changes)
