"""Records of the throttle topic as the rows they are stored as, as messages, and back; and whom they hold."""

import json
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, Final

import pyarrow as pa
from hypothesis import strategies as st

from quota.entity import QUOTA_TYPES
from schemas.arrow import arrow_schema
from schemas.throttle_record import MESSAGE_COLUMNS, SENSOR, Message, ThrottleEventRow, ThrottleRecord, message_of

_SCHEMA = arrow_schema(ThrottleEventRow)


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


def row_of(record: ThrottleRecord) -> dict[str, Any]:
    return {**dict(record), **dict(zip(SENSOR, record.sensor, strict=True))}


def rows_of(*records: ThrottleRecord) -> pa.Table:
    schema = pa.schema([_SCHEMA.field(name) for name in MESSAGE_COLUMNS])
    return pa.Table.from_pylist([row_of(one) for one in records], schema)


def message(record: ThrottleRecord, job: str = "kquota") -> Message:
    return message_of(row_of(record), job)


def stored_record(row: Mapping[str, Any]) -> ThrottleRecord:
    """The record of a stored row; it is not validated."""
    values = {name: row[name] for name in ThrottleRecord.model_fields if name != "sensor"}
    return ThrottleRecord.model_construct(sensor=(row["sensor_user"], row["sensor_client_id"]), **values)


CLUSTERS: Final = ("c", "d")
BROKERS: Final = ("", "1", "2")
USERS: Final = ("alice", "null")
CLIENT_IDS: Final = ("", "null", "etl", "web")
CLIENTS: Final = tuple(product(CLUSTERS, BROKERS, USERS, CLIENT_IDS))
"""All clients that `messages` may hold: cluster, broker, user, client-id."""
LAST_END_MS: Final = 100


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """A message as a reader may find it, also of another version of the record; it ends by `LAST_END_MS`."""
    action, until_ms = draw(st.sampled_from(("throttle", "throttle", "release"))), draw(st.integers(1, LAST_END_MS))
    client_id = draw(st.none() | st.sampled_from(CLIENT_IDS))
    excepted = draw(st.lists(st.sampled_from(CLIENT_IDS), max_size=2))
    one = record(
        draw(st.integers(0, 3)), until_ms,
        action=action,
        throttle_time_ms=until_ms if action == "throttle" else 0,
        cluster=draw(st.sampled_from(CLUSTERS)),
        broker_id=draw(st.sampled_from(("", "1"))),
        user=draw(st.sampled_from(USERS)),
        client_id=client_id,
        except_client_ids=tuple(excepted) if client_id is None else None,
        quota_type=draw(st.sampled_from(QUOTA_TYPES)),
    )  # fmt: skip
    sent = message(one)
    version = draw(st.sampled_from((b"2", b"2", b"2", b"1", b"3")))
    return sent._replace(value=sent.value.replace(_VERSION, _VERSION[:-1] + version))


_VERSION: Final = b'"schema_version":2'


def is_of_another_version(sent: Message) -> bool:
    return _VERSION not in sent.value


def held_until_ms(sent: Iterable[Message], cluster: str, broker_id: str, user: str, client_id: str) -> int:
    """The end of the last throttle that holds a client, by the rule of docs/gate.md; 0 for none."""
    newest = {one.key: json.loads(one.value) for one in sent if not is_of_another_version(one)}
    ends_ms = [0]
    for throttle in newest.values():
        is_here = throttle["cluster"] == cluster and throttle["broker_id"] in {"", broker_id}
        if throttle["client_id"] is None:
            is_mine = throttle["user"] == user and client_id not in throttle["except_client_ids"]
        else:
            is_mine = (throttle["user"], throttle["client_id"]) == (user, client_id)
        if throttle["action"] == "throttle" and is_here and is_mine:
            ends_ms.append(throttle["throttled_until_ms"])
    return max(ends_ms)
