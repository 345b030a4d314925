"""Throttles and reasons with every field set, to be overridden where a test cares."""

from typing import Any

from pipeline.throttle.held import HeldThrottle, Publication, Reason
from schemas.client_key import ClientKey
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


def held(key: ClientKey = ALICE, end_ms: int = 10_000, **overrides: Any) -> HeldThrottle:
    fields: dict[str, Any] = {
        "reason": reason(),
        "decision_id": "first",
        "throttled_until_ms": end_ms,
        "due_ms": end_ms - 300,
    }
    return HeldThrottle(key=key, end_ms=end_ms, **{**fields, **overrides})


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
