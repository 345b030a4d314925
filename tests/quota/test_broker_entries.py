"""What the brokers' own quotas are made of: entries of rows, and entries of sensors of defaults."""

from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quota.broker_levels.entries import UNREACHED, EntryKey, OwnGrants, broker_entries, writable_levels
from quota.engine import QuotaEngine
from quota.entity import QUOTA_TYPES
from quota.snapshot import QuotaSnapshot
from tests.quota.factories import loaded, quota_row
from tests.quota.synced import D

PRODUCER, CONSUMER, REQUEST = QUOTA_TYPES


def entries(
    *rows: dict[str, Any], mirror: bool = False, mode: Literal["enforce", "shadow"] = "enforce"
) -> list[tuple[str, str, str, float, str]]:
    found = broker_entries(QuotaSnapshot.from_rows(rows, 1, mode), mirror)
    return [(*entry.key, entry.bound, str(entry.kind)) for entry in found]


@pytest.mark.parametrize(
    ("user", "client_id", "kind"),
    [
        ("alice", "etl", "level"),
        ("alice", D, "bound"),
        ("alice", "", "level"),
        (D, "etl", "bound"),
        (D, D, "bound"),
        (D, "", "bound"),
        ("", "etl", "level"),
        ("", D, "bound"),
    ],
)
def test_only_an_enforced_row_with_one_sensor_has_a_level(user: str, client_id: str, kind: str) -> None:
    row = quota_row(user, client_id, producer_byte_rate=5.0)
    assert entries(row) == [(user, client_id, PRODUCER, 5.0, kind)]
    assert entries(row, mirror=True) == [(user, client_id, PRODUCER, 5.0, "bound")]
    assert entries({**row, "mode": "shadow"}) == entries(row, mode="shadow") == []


@pytest.mark.parametrize(
    ("other", "needed"),
    [
        (quota_row(D, "", producer_byte_rate=5.0), True),
        (quota_row("", "etl", producer_byte_rate=5.0), True),
        (quota_row(D, "", producer_byte_rate=5.0, mode="shadow"), False),
        (quota_row(D, "", consumer_byte_rate=5.0), False),
        (quota_row("alice", "etl", producer_byte_rate=5.0), False),
        (quota_row("bob", "", producer_byte_rate=5.0), False),
    ],
)
def test_an_exempt_row_has_an_entry_where_a_less_specific_row_would_hold(other: dict[str, Any], needed: bool) -> None:
    found = entries(quota_row("alice", mode="exempt"), other)
    assert (("alice", "", PRODUCER, UNREACHED, "unbounded") in found) is needed


@pytest.mark.parametrize(
    ("level", "bound", "quota_type", "written"),
    [
        (33.2, 100.0, PRODUCER, 34.0),
        (34.0, 100.0, CONSUMER, 34.0),
        (99.5, 99.7, PRODUCER, 99.7),
        (0.25, 1.0, PRODUCER, 1.0),
        (33.2, 100.0, REQUEST, 33.2),
    ],
)
def test_a_level_is_written_as_kafka_takes_it(level: float, bound: float, quota_type: str, written: float) -> None:
    assert writable_levels(np.array([level]), np.array([bound]), quota_type).tolist() == [written]


OF_USERS = quota_row(D, "", producer_byte_rate=5.0)
NO_DEFAULT = "no default bounds it"
HARM = "an entry of its own would change the quota of user 'bob', client-id"


def asked(*rows: dict[str, Any], sensors: tuple[tuple[str, str], ...]) -> tuple[list[Any], list[str]]:
    grants = OwnGrants()
    grants.load(QuotaSnapshot.from_rows(rows, 1))
    grants.ask(EntryKey(*tags, PRODUCER) for tags in sensors)
    entries = [(*entry.key[:2], entry.bound, str(entry.kind)) for entry in grants.granted.values()]
    return entries, [one.reason for one in grants.refused.values()]


@pytest.mark.parametrize(
    ("rows", "tags", "bound", "refused"),
    [
        ([quota_row(D, "", producer_byte_rate=5.0)], ("bob", ""), 5.0, ""),
        ([quota_row("", D, producer_byte_rate=5.0)], ("", "etl"), 5.0, ""),
        ([quota_row(D, D, producer_byte_rate=5.0)], ("bob", "etl"), 5.0, ""),
        ([quota_row(D, "etl", producer_byte_rate=5.0)], ("bob", "etl"), 5.0, ""),
        ([quota_row("bob", D, producer_byte_rate=5.0)], ("bob", "etl"), 5.0, ""),
        ([quota_row("bob", "", producer_byte_rate=5.0)], ("bob", ""), None, NO_DEFAULT),
        ([quota_row("bob", "", mode="exempt")], ("bob", ""), None, NO_DEFAULT),
        ([quota_row(D, "", producer_byte_rate=5.0, mode="shadow")], ("bob", ""), None, NO_DEFAULT),
        ([OF_USERS, quota_row(D, "etl", producer_byte_rate=3.0)], ("bob", ""), None, f"{HARM} 'etl'"),
        ([OF_USERS, quota_row(D, D, producer_byte_rate=3.0)], ("bob", ""), None, f"{HARM} 'any other'"),
        ([OF_USERS, quota_row(D, "etl", mode="exempt")], ("bob", ""), None, f"{HARM} 'etl'"),
        ([OF_USERS, quota_row(D, "etl", producer_byte_rate=3.0, mode="shadow")], ("bob", ""), 5.0, ""),
    ],
)
def test_a_sensor_of_a_default_has_an_entry_where_it_changes_no_other_quota(
    rows: list[dict[str, Any]], tags: tuple[str, str], bound: float | None, refused: str
) -> None:
    wanted = ([], [refused]) if bound is None else ([(*tags, bound, "own")], [])
    assert asked(*rows, sensors=(tags,)) == wanted


def test_a_grant_that_is_forgotten_leaves_room_for_another() -> None:
    grants, (first, second) = OwnGrants(most_per_user=1), (EntryKey("bob", name, PRODUCER) for name in ("etl", "web"))
    grants.load(QuotaSnapshot.from_rows([quota_row(D, D, producer_byte_rate=5.0)], 1))
    grants.ask([first, second])
    assert ([*grants.granted], grants.left_out) == ([first], {"bob": 1})
    grants.forget([first])
    grants.ask([second])
    assert ([*grants.granted], grants.left_out) == ([second], {})


NAMES = st.sampled_from(["a", "b", D, ""])
ROWS = st.lists(
    st.tuples(NAMES, NAMES, st.sampled_from(["enforce", "exempt"])).filter(lambda row: row[:2] != ("", "")),
    unique_by=lambda row: row[:2],
    max_size=8,
)
CLIENTS = [(user, client_id) for user in ("a", "b", "other") for client_id in ("a", "b", "other", "")]


@settings(max_examples=40)
@given(rows=ROWS, tags=st.lists(st.sampled_from([t for t in CLIENTS if t != ("", "")]), unique=True, max_size=4))
def test_entries_change_neither_sensor_nor_bound_of_any_client(
    rows: list[tuple[str, str, str]], tags: list[tuple[str, str]]
) -> None:
    given_rows = [
        quota_row(user, client_id, mode=mode, producer_byte_rate=float(place + 1))
        for place, (user, client_id, mode) in enumerate(rows)
    ]
    granted, refused = asked(*given_rows, sensors=tuple(tags))
    own = [quota_row(user, client_id, producer_byte_rate=bound) for user, client_id, bound, _ in granted]
    assert len(granted) + len(refused) == len(tags)
    assert resolved(loaded(*given_rows, *own)) == resolved(loaded(*given_rows))


def resolved(engine: QuotaEngine) -> list[tuple[Any, ...]]:
    users, client_ids = zip(*CLIENTS, strict=True)
    rows = engine.resolve(pa.table({"user": users, "client_id": client_ids})).to_pylist()
    return [(row["sensor_user"], row["sensor_client_id"], row["bound"]) for row in rows[::3]]
