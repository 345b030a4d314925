from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quota.broker_levels.entries import EntryKey, own_entries
from quota.engine import QuotaEngine
from quota.entity import QUOTA_TYPES
from quota.snapshot import QuotaSnapshot
from tests.quota.factories import loaded, quota_row

PRODUCER = QUOTA_TYPES[0]
D = "<default>"


def asked(*rows: dict[str, Any], sensors: tuple[tuple[str, str], ...]) -> tuple[list[Any], list[str]]:
    granted, refused = own_entries(QuotaSnapshot.from_rows(rows, 1), [EntryKey(*tags, PRODUCER) for tags in sensors])
    entries = [(entry.key.user, entry.key.client_id, entry.bound, str(entry.kind)) for entry in granted]
    return entries, [one.reason for one in refused]


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
        ((D, D), "user 'bob', client-id ''"),
    ],
)
def test_an_entry_of_a_user_that_would_hide_a_row_of_the_default_user_is_refused(
    hidden: tuple[str, str], who: str
) -> None:
    rows = (quota_row(D, "", producer_byte_rate=5.0), quota_row(*hidden, producer_byte_rate=3.0))
    granted, refused = asked(*rows, sensors=(("bob", ""),))
    assert granted == []
    if hidden == (D, "etl"):
        assert refused == [f"an entry of its own would change the quota of {who}"]
    else:  # all of bob's clients with a name stand under the pair
        assert len(refused) == 1


def test_a_row_of_another_type_hides_nothing() -> None:
    rows = (quota_row(D, "", producer_byte_rate=5.0), quota_row(D, "etl", consumer_byte_rate=3.0))
    assert asked(*rows, sensors=(("bob", ""),)) == ([("bob", "", 5.0, "own")], [])


def test_an_exempt_row_that_would_be_hidden_counts_and_a_shadow_row_does_not() -> None:
    default = quota_row(D, "", producer_byte_rate=5.0)
    assert asked(default, quota_row(D, "etl", mode="exempt"), sensors=(("bob", ""),))[0] == []
    shadow = quota_row(D, "etl", producer_byte_rate=3.0, mode="shadow")
    assert asked(default, shadow, sensors=(("bob", ""),))[1] == []


def test_a_row_that_bounds_another_type_of_the_same_user_keeps_it() -> None:
    rows = (quota_row(D, "", producer_byte_rate=5.0), quota_row("bob", "", consumer_byte_rate=3.0))
    assert asked(*rows, sensors=(("bob", ""),))[0] == [("bob", "", 5.0, "own")]


def test_a_sensor_may_have_an_entry_of_one_type_and_not_of_the_other() -> None:
    rows = [
        quota_row(D, "", producer_byte_rate=5.0, consumer_byte_rate=6.0),
        quota_row(D, "etl", producer_byte_rate=3.0),
    ]
    granted, refused = own_entries(
        QuotaSnapshot.from_rows(rows, 1), [EntryKey("bob", "", name) for name in QUOTA_TYPES[:2]]
    )
    assert [entry.key.quota_type for entry in granted] == ["consumer_byte_rate"]
    assert [one.key.quota_type for one in refused] == ["producer_byte_rate"]


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


def test_one_that_is_refused_does_not_keep_others_from_theirs() -> None:
    rows = (
        quota_row(D, "", producer_byte_rate=5.0),
        quota_row(D, "etl", producer_byte_rate=3.0),
        quota_row("carol", "etl", producer_byte_rate=2.0),
    )
    granted, refused = asked(*rows, sensors=(("bob", ""), ("carol", ""), ("bob", "etl")))
    assert [entry[:2] for entry in granted] == [("carol", ""), ("bob", "etl")]
    assert len(refused) == 1


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
    granted, refused = own_entries(QuotaSnapshot.from_rows(given_rows, 1), [EntryKey(*one, PRODUCER) for one in tags])
    apart = [own_entries(QuotaSnapshot.from_rows(given_rows, 1), [EntryKey(*one, PRODUCER)]) for one in tags]
    assert granted == tuple(entry for entries, _ in apart for entry in entries), "an answer depends on no other entry"
    own = [quota_row(entry.key.user, entry.key.client_id, producer_byte_rate=entry.bound) for entry in granted]
    assert len(granted) + len(refused) == len(tags)
    assert resolved(loaded(*given_rows, *own)) == resolved(loaded(*given_rows))


def resolved(engine: QuotaEngine) -> list[tuple[Any, ...]]:
    users, client_ids = zip(*CLIENTS, strict=True)
    rows = engine.resolve(pa.table({"user": users, "client_id": client_ids})).to_pylist()
    return [(row["sensor_user"], row["sensor_client_id"], row["bound"]) for row in rows[::3]]
