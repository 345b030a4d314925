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
from tests.quota.synced import D, key_of

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
        ("alice", "<default>", "bound"),
        ("alice", "", "level"),
        ("<default>", "etl", "bound"),
        ("<default>", "<default>", "bound"),
        ("<default>", "", "bound"),
        ("", "etl", "level"),
        ("", "<default>", "bound"),
    ],
)
def test_only_a_row_with_one_sensor_has_a_level(user: str, client_id: str, kind: str) -> None:
    row = quota_row(user, client_id, producer_byte_rate=5.0)
    assert entries(row) == [(user, client_id, PRODUCER, 5.0, kind)]
    assert entries(row, mirror=True) == [(user, client_id, PRODUCER, 5.0, "bound")]


def test_a_shadow_row_and_a_table_in_shadow_mode_have_none() -> None:
    assert entries(quota_row("alice", producer_byte_rate=5.0, mode="shadow")) == []
    assert entries(quota_row("alice", producer_byte_rate=5.0), mode="shadow") == []


@pytest.mark.parametrize(
    ("other", "needed"),
    [
        (quota_row("<default>", "", producer_byte_rate=5.0), True),
        (quota_row("", "etl", producer_byte_rate=5.0), True),
        (quota_row("<default>", "", producer_byte_rate=5.0, mode="shadow"), False),
        (quota_row("<default>", "", consumer_byte_rate=5.0), False),
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


def asked(*rows: dict[str, Any], sensors: tuple[tuple[str, str], ...]) -> tuple[list[Any], list[str]]:
    grants = OwnGrants()
    grants.load(QuotaSnapshot.from_rows(rows, 1))
    grants.ask(EntryKey(*tags, PRODUCER) for tags in sensors)
    entries = [(*entry.key[:2], entry.bound, str(entry.kind)) for entry in grants.granted.values()]
    return entries, [one.reason for one in grants.refused.values()]


@pytest.mark.parametrize(
    ("default", "tags"),
    [
        ((D, ""), ("bob", "")),
        (("", D), ("", "etl")),
        ((D, D), ("bob", "etl")),
        ((D, "etl"), ("bob", "etl")),
        (("bob", D), ("bob", "etl")),
    ],
)
def test_a_sensor_of_each_default_can_have_an_entry(default: tuple[str, str], tags: tuple[str, str]) -> None:
    granted, refused = asked(quota_row(*default, producer_byte_rate=5.0), sensors=(tags,))
    assert (granted, refused) == ([(*tags, 5.0, "own")], [])


@pytest.mark.parametrize(
    ("hidden", "who"),
    [
        ((D, "etl"), "user 'bob', client-id 'etl'"),
        ((D, D), "user 'bob', client-id 'any other'"),
    ],
)
def test_an_entry_of_a_user_that_would_hide_a_row_of_the_default_user_is_refused(
    hidden: tuple[str, str], who: str
) -> None:
    rows = (quota_row(D, "", producer_byte_rate=5.0), quota_row(*hidden, producer_byte_rate=3.0))
    granted, refused = asked(*rows, sensors=(("bob", ""),))
    assert granted == []
    assert refused == [f"an entry of its own would change the quota of {who}"]


def test_an_exempt_row_that_would_be_hidden_counts_and_a_shadow_row_does_not() -> None:
    default = quota_row(D, "", producer_byte_rate=5.0)
    assert asked(default, quota_row(D, "etl", mode="exempt"), sensors=(("bob", ""),))[0] == []
    shadow = quota_row(D, "etl", producer_byte_rate=3.0, mode="shadow")
    assert asked(default, shadow, sensors=(("bob", ""),))[1] == []


@pytest.mark.parametrize(
    "row",
    [
        quota_row("bob", "", producer_byte_rate=5.0),
        quota_row("bob", "", mode="exempt"),
        quota_row(D, "", producer_byte_rate=5.0, mode="shadow"),
    ],
)
def test_a_sensor_that_no_default_bounds_gets_none(row: dict[str, Any]) -> None:
    assert asked(row, sensors=(("bob", ""),)) == ([], ["no default bounds it"])


NAMES = st.sampled_from(["a", "b", D, ""])
ROWS = st.lists(
    st.tuples(NAMES, NAMES, st.sampled_from(["enforce", "exempt", "shadow"])).filter(lambda row: row[:2] != ("", "")),
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
        if mode != "shadow"
    ]
    granted, refused = asked(*given_rows, sensors=tuple(tags))
    own = [quota_row(user, client_id, producer_byte_rate=bound) for user, client_id, bound, _ in granted]
    assert len(granted) + len(refused) == len(tags)
    assert resolved(loaded(*given_rows, *own)) == resolved(loaded(*given_rows))


def resolved(engine: QuotaEngine) -> list[tuple[Any, ...]]:
    users, client_ids = zip(*CLIENTS, strict=True)
    rows = engine.resolve(pa.table({"user": users, "client_id": client_ids})).to_pylist()
    return [(row["sensor_user"], row["sensor_client_id"], row["bound"]) for row in rows[::3]]


BOB, CAROL, ERIN = key_of("bob"), key_of("carol"), key_of("erin", "etl")
PLAIN = QuotaSnapshot.from_rows([quota_row(D, producer_byte_rate=5.0)], 1)
HIDING = QuotaSnapshot.from_rows([quota_row(D, producer_byte_rate=5.0), quota_row(D, "etl", producer_byte_rate=3.0)], 2)


def test_answers_are_kept_until_the_quotas_change() -> None:
    grants = OwnGrants()
    grants.load(PLAIN)
    grants.ask([BOB])
    grants.ask([BOB, CAROL, CAROL])
    assert {key: entry.bound for key, entry in grants.granted.items()} == {BOB: 5.0, CAROL: 5.0}
    grants.load(HIDING)
    grants.ask([BOB])
    grants.ask([ERIN])
    assert (list(grants.granted), list(grants.refused)) == ([ERIN], [BOB])


def test_users_without_entries_take_no_memory() -> None:
    grants = OwnGrants()
    grants.load(PLAIN)
    grants.ask([BOB, CAROL])
    grants.forget([BOB])
    assert list(grants._of_user) == ["carol"]
