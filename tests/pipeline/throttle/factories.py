"""Throttles and reasons with every field set, to be overridden where a test cares."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.throttle.ledger import Throttles
from pipeline.throttle.shapes import CLIENTS, Publications
from quota.decisions import Asked, Claims
from quota.entity import QUOTA_TYPES
from quota.usage import EntityNames
from schemas.names import ClientKey
from schemas.throttle_record import Action, Cause, Target

ALICE = ClientKey("", "alice", "etl")
BOB = ClientKey("", "bob", "")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a client must wait: the columns of `Claims`, with the names of the sensor."""

    quota_type: str = "producer_byte_rate"
    sensor_user: str = "alice"
    sensor_client_id: str = "etl"
    observed: float = 2_000.0
    bound: float | None = 1_000.0
    window_ms: int = 10_000
    tokens: float | None = -500.0
    owed_ms: int = 0
    level: int | None = 1


@dataclass(frozen=True, slots=True)
class Publication:
    """A record that is about to be written."""

    key: ClientKey | Target = ALICE
    throttle_time_ms: int = 1_000
    action: Action = "throttle"
    cause: Cause = "violation"
    reason: Reason = Reason()
    decision_id: str = "first"


def violation(key: ClientKey | Target = ALICE, throttle_time_ms: int = 1_000, **overrides: Any) -> Publication:
    return Publication(key, throttle_time_ms, **overrides)


def claims(*some: Reason) -> Claims:
    """Reasons in columns."""
    return Claims(
        quota_type=np.array([QUOTA_TYPES.index(one.quota_type) for one in some], np.int64),
        has_user=np.array([one.sensor_user != "" for one in some], np.bool_),
        has_client_id=np.array([one.sensor_client_id != "" for one in some], np.bool_),
        observed=np.array([one.observed for one in some], np.float64),
        bound=np.array([np.inf if one.bound is None else one.bound for one in some], np.float64),
        window_ms=np.array([one.window_ms for one in some], np.int64),
        tokens=np.array([np.nan if one.tokens is None else one.tokens for one in some], np.float64),
        owed_ms=np.array([one.owed_ms for one in some], np.int64),
        level=np.array([one.level or 0 for one in some], np.int64),
        own_bound=np.array([np.inf if one.bound is None else one.bound for one in some], np.float64),
        tenant=np.full(len(some), None, np.object_),
    )


def clients(*some: ClientKey | Target) -> pa.Table:
    """Clients and users, of `CLIENTS`."""
    return pa.Table.from_pylist([key._asdict() for key in some], CLIENTS)


def written_row(one: Publication, wall_ms: int = 0, **changes: Any) -> dict[str, Any]:
    """A row of `WRITTEN`."""
    (row,) = publications(one).written(0, wall_ms).to_pylist()
    return {**row, **changes}


def publications(*some: Publication) -> Publications:
    """Publications in columns; the sensor of each has both names of its client."""
    return Publications(
        keys=(np.zeros(len(some), np.uint64), np.zeros(len(some), np.uint64)),
        clients=clients(*(one.key for one in some)),
        excepted=np.full(len(some), None, np.object_),
        claims=claims(*(one.reason for one in some)),
        holds=np.array([one.action == "throttle" for one in some], np.bool_),
        throttle_time_ms=np.array([one.throttle_time_ms for one in some], np.int64),
        decision_ids=np.array([one.decision_id for one in some], np.object_),
        about={"cause": pa.array([one.cause for one in some], pa.string())},
    )


def asked(*some: Publication) -> Asked:
    """The throttles that a batch asks for."""
    made, names = publications(*some), EntityNames(clients(*(one.key for one in some)), has_brokers=True)
    of_users = np.zeros(len(some), np.bool_)
    return Asked(names, np.arange(len(some)), made.keys, of_users, made.claims, made.throttle_time_ms, of_users)


def due(end_ms: int = 10_000, due_ms: int | None = None) -> Throttles:
    """One running throttle; its figures are those of `Reason()`."""
    one = claims(Reason())
    times = np.array([end_ms]), np.array([end_ms - 300 if due_ms is None else due_ms])
    none = np.zeros(1, np.int64)
    return Throttles(np.full(1, None, np.object_), one.quota_type, one.bound, one.level, none, none, *times)
