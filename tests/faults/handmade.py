"""Evidence made by hand: one client, 40 000 bytes at once under a quota of 1 000 a second, until it is released."""

from tests.faults.evidence import Evidence, Message, Quotas, Row

T_MS = 1_700_000_000_000
_SETTINGS = (
    '{"num_samples":11,"sample_window_ms":1000,"producer_byte_rate_cap":"window","consumer_byte_rate_cap":"window",'
    '"request_percentage_cap":"sample_window","carry_debt":true}'
)
_WHO = {"cluster": "test", "broker_id": "", "user": "alice", "client_id": "etl"}
_SENSOR = {"sensor_user": "alice", "sensor_client_id": ""}
_DECISION_ID = "95794a15ea602d60"


def evidence() -> Evidence:
    """A job that did everything right."""
    burst = f'{{"event_time_ms":{T_MS},"user":"alice","client_id":"etl","produced_bytes":40000}}'.encode()
    late = f'[{{"event_time_ms":{T_MS + 200},"user":"bob","client_id":"","fetched_bytes":5}},7]'.encode()
    events = _events()
    return Evidence(
        usage_topic="usage",
        messages=[
            Message(0, 0, T_MS + 5, b"1/0", burst),
            Message(0, 1, T_MS + 205, b"1/1", late),
            Message(0, 2, T_MS + 206, b"1/2", None),
        ],
        records=[_record(event) for event in events],
        tables={
            "usage": [
                _usage(0, T_MS, user="alice", client_id="etl", produced_bytes=40_000, last_event_ms=T_MS),
                _usage(1, T_MS + 200, user="bob", client_id="", fetched_bytes=5, last_event_ms=T_MS + 200),
            ],
            "batches": [
                _batch(0, T_MS, "", '{"usage":{"0":1}}', good_count=1),
                _batch(1, T_MS + 200, '{"usage":{"0":1}}', '{"usage":{"0":3}}', 1, ignored_count=1, dead_count=1),
            ],
            "decisions": [_decision()],
            "dead_letters": [_dead_letter()],
            "throttle_events": events,
            "sensor_state": [_bucket()],
        },
        starts=[T_MS - 5_000],
        quotas={
            1: Quotas(
                ({"user": "alice", "client_id": "", "producer_byte_rate": 1_000.0, "mode": "enforce"},), "enforce"
            )
        },
    )


def _of_batch(batch_id: int, evaluated_at_ms: int) -> Row:
    return {
        "query_id": "q",
        "batch_id": batch_id,
        "time_epoch": 0,
        "evaluated_at_ms": evaluated_at_ms,
        "quota_version": 1,
    }


def _usage(batch_id: int, evaluated_at_ms: int, **values: object) -> Row:
    nothing = dict.fromkeys(
        ("produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns", "exempt_time_ns", "broker_throttle_ms")
    )
    return {
        **_of_batch(batch_id, evaluated_at_ms),
        "sample_start_ms": T_MS,
        "broker_id": "",
        **nothing,
        "request_count": 1,
        **values,
    }


def _batch(batch_id: int, at_ms: int, start: str, end: str, good_count: int, **counts: int) -> Row:
    return {
        **_of_batch(batch_id, at_ms),
        "cluster": "test",
        "processed_at_ms": at_ms + 300,
        "start_offsets": start,
        "end_offsets": end,
        "engine_settings": _SETTINGS,
        "good_count": good_count,
        **{"late_count": 0, "clamped_count": 0, "ignored_count": 0, "dead_count": 0, **counts},
    }


def _decision() -> Row:
    """O = 40 000 / 10 s; X = (4 000 - 1 000) / 1 000 x 10 s, capped at the window."""
    return {
        **_of_batch(0, T_MS),
        **_WHO,
        **_SENSOR,
        "quota_type": "producer_byte_rate",
        "observed": 4_000.0,
        "bound": 1_000.0,
        "window_ms": 10_000,
        "raw_throttle_time_ms": 30_000,
        "max_throttle_time_ms": 10_000,
        "throttle_time_ms": 10_000,
        "level": 3,
        "mode": "enforce",
        "applied": True,
        "decision_id": _DECISION_ID,
    }


def _dead_letter() -> Row:
    place = {"topic": "usage", "partition": 0, "offset": 1, "element_index": 1, "appended_at_ms": T_MS + 205}
    return {"query_id": "q", "batch_id": 1, **place, "cause": "element must be a JSON object", "value": b"7"}


def _bucket() -> Row:
    """11 000 - 40 000, charged at the instant of the first batch."""
    sensor = {"broker_id": "", **_SENSOR, "quota_type": "producer_byte_rate"}
    return {**_of_batch(0, T_MS), **sensor, "tokens": -29_000.0, "refilled_at_ms": T_MS}


def _events() -> list[Row]:
    """Throttled for 10 s, renewed three times for what is left of a debt of 29 000, released when it is paid.

    Each look comes 1.1 s before the end. The last one finds 1.1 s owed, which is what is left, and leaves no record.
    """
    begun = _event(0, 0, 0, "throttle", "violation", 10_000, observed=4_000.0, tokens=-29_000.0, owed_ms=30_000)
    renewals = [
        _event(1, 1, 9_000, "throttle", "renewed", 10_000, observed=4_000.0, tokens=-20_000.0, owed_ms=30_000),
        _event(2, 1, 17_900, "throttle", "renewed", 10_000, observed=0.0, tokens=-11_100.0, owed_ms=11_100),
        _event(3, 1, 26_800, "throttle", "renewed", 2_200, observed=0.0, tokens=-2_200.0, owed_ms=2_200),
    ]
    released = _event(4, 1, 29_000, "release", "expired", 0, observed=0.0, tokens=0.0, owed_ms=0)
    return [begun, *renewals, released]


def _event(
    publish_seq: int, batch_id: int, after_ms: int, action: str, cause: str, throttle_time_ms: int, **figures: object
) -> Row:
    """A record of so long after the first event; the batches are collected 0.3 s after their instants."""
    written_ms = T_MS + after_ms + 300 + (100 if cause == "violation" else 0)
    return {
        **_of_batch(batch_id, T_MS + after_ms),
        **_WHO,
        **_SENSOR,
        "publish_seq": publish_seq,
        "action": action,
        "cause": cause,
        "quota_type": "producer_byte_rate",
        "bound": 1_000.0,
        "window_ms": 10_000,
        "throttle_time_ms": throttle_time_ms,
        "throttled_until_ms": written_ms + throttle_time_ms,
        "due_ms": None if cause == "violation" else written_ms,
        "decision_id": _DECISION_ID,
        "schema_version": 1,
        **figures,
    }


def _record(event: Row) -> Row:
    dropped = {"query_id", "time_epoch", "evaluated_at_ms", "sensor_user", "sensor_client_id", "due_ms"}
    kept = {name: value for name, value in event.items() if name not in dropped}
    key = [event[name] for name in ("cluster", "broker_id", "user", "client_id")]
    return {**kept, "sensor": [event["sensor_user"], event["sensor_client_id"]], "key": key, "partition": 0}
