"""Metering by quotas that no client reaches: where they stand, and that a sync keeps them out of the way."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.broker_levels.entries import METERED, METERED_BY_USER, EntryKey, EntryKind
from quota.broker_levels.metering import metering_entries, switched_off, switched_on, usual_choice
from quota.entity import QUOTA_TYPES
from tests.quota.factories import loaded, quota_row, table
from tests.quota.synced import CONSUMER, PRODUCER, REQUEST, D, Synced, key_of

PAIR, USER, CLIENT = (key_of(*entity) for entity in ((D, D), (D, ""), ("", D)))
ALL = {PAIR._replace(quota_type=name): METERED for name in QUOTA_TYPES}
ALL_BY_USER = {USER._replace(quota_type=name): METERED_BY_USER for name in QUOTA_TYPES}
BY_PAIR = dict.fromkeys(QUOTA_TYPES, METERED)


@pytest.mark.parametrize(
    ("rows", "by_pair", "by_user"),
    [
        ([], PAIR, USER),
        ([key_of("alice")], PAIR, USER),
        ([key_of("alice", "etl"), key_of("alice", D), key_of(D, "etl")], PAIR, USER),
        ([key_of("", "app")], CLIENT, CLIENT),
        ([key_of("", "app"), key_of("alice")], CLIENT, CLIENT),
        ([USER], CLIENT, CLIENT),
        ([PAIR], USER, USER),
        ([PAIR, USER], CLIENT, CLIENT),
        ([CLIENT], None, None),
        ([USER, CLIENT], None, None),
    ],
)
def test_it_stands_at_the_most_specific_level_that_hides_no_row(
    rows: list[EntryKey], by_pair: EntryKey | None, by_user: EntryKey | None
) -> None:
    for bound, entry in ((METERED, by_pair), (METERED_BY_USER, by_user)):
        found = metering_entries(rows, {PRODUCER: bound})
        assert [one.key for one in found] == ([] if entry is None else [entry])
        assert all((one.bound, one.kind) == (bound, EntryKind.METERING) for one in found)


@pytest.mark.parametrize(
    ("held", "named", "by_pair"),
    [
        ({}, set(), set()),
        ({key_of("alice"): 5.0, key_of("alice", "", CONSUMER): 5.0}, set(), set()),
        ({key_of("alice", "etl"): 5.0}, set(), {PRODUCER}),
        ({key_of("", D): 5.0}, {CONSUMER}, {PRODUCER, CONSUMER}),
        ({PAIR: METERED, USER._replace(quota_type=CONSUMER): METERED_BY_USER}, set(), {PRODUCER}),
        ({CLIENT: METERED_BY_USER}, set(), set()),
    ],
)
def test_by_user_is_usual_where_no_quota_names_a_client_id_and_by_pair_stays(
    held: dict[EntryKey, float], named: set[str], by_pair: set[str]
) -> None:
    assert {name for name, bound in usual_choice(held, named).items() if bound == METERED} == by_pair


NAMES = st.sampled_from(["", D, "a", "b"])
KEYS = st.builds(EntryKey, NAMES, NAMES, st.sampled_from(QUOTA_TYPES)).filter(lambda key: key.user or key.client_id)


@given(st.lists(KEYS, max_size=8, unique=True), st.sampled_from([METERED, METERED_BY_USER]))
def test_no_client_has_another_bound_because_of_it_and_every_client_has_a_sensor(
    rows: list[EntryKey], value: float
) -> None:
    bounds = {key: 100.0 + at for at, key in enumerate(rows)}
    changes = switched_on(bounds, (), dict.fromkeys(QUOTA_TYPES, value))
    metered = {**bounds, **{change.key: value for change in changes}}
    before, after = resolved(bounds), resolved(metered)
    for client, bound in before.items():
        # Kafka looks up the bound of a client without a client-id by its user: it has a sensor without a bound.
        without = {None, value} if not client[1] else {value}
        assert after[client] in ({bound} if bound is not None else without)


def resolved(bounds: dict[EntryKey, float]) -> dict[tuple[str, str, str], float | None]:
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for (user, client_id, quota_type), bound in bounds.items():
        rows.setdefault((user, client_id), quota_row(user, client_id))[quota_type] = bound
    clients = table([{"user": user, "client_id": client_id} for user in "abc" for client_id in ("", *"abc")])
    answers = loaded(*rows.values()).resolve(clients).to_pylist()
    return {(row["user"], row["client_id"], row["quota_type"]): row["bound"] for row in answers}


def test_switched_on_twice_is_once_and_switched_off_leaves_the_quotas_of_others() -> None:
    others = {key_of("alice"): 5.0, key_of("bob", "", REQUEST): METERED}
    held = {**others, **{change.key: METERED for change in switched_on(others, (), BY_PAIR)}}
    assert held == {**others, **ALL}
    assert switched_on(held, (), BY_PAIR) == []
    off = switched_off(held)
    assert {change.key for change in off} == set(ALL)
    assert {change.new for change in off} == {None}


@pytest.mark.parametrize(
    ("others", "moved"),
    [
        ([], [(PAIR, METERED, None), (USER, None, METERED_BY_USER)]),
        ([CLIENT._replace(client_id="app")], [(PAIR, METERED, None), (CLIENT, None, METERED_BY_USER)]),
        ([PAIR], [(USER, METERED, METERED_BY_USER)]),
    ],
)
def test_the_other_choice_takes_the_place_of_the_first(
    others: list[EntryKey], moved: list[tuple[EntryKey, float | None, float | None]]
) -> None:
    on = USER if PAIR in others else PAIR
    held = {**dict.fromkeys(others, 5.0), on: METERED}
    changes = switched_on(held, (), {PRODUCER: METERED_BY_USER})
    assert [(change.key, change.old, change.new) for change in changes] == moved


@pytest.mark.parametrize("on", [ALL, ALL_BY_USER])
def test_a_sync_never_removes_it(on: dict[EntryKey, float]) -> None:
    synced = Synced(quota_row("alice", producer_byte_rate=100.0), held=on)
    assert synced.period() == [("alice", None, 100.0, "added")]
    synced.load()
    synced.period()
    synced.restart()
    synced.period()
    synced.load(quota_row("alice", producer_byte_rate=100.0), mode="shadow")
    synced.period()
    assert synced.ledger.held == on
    assert synced.sync.drifts == ()


@pytest.mark.parametrize(
    ("row", "on"),
    [(quota_row("", "app", producer_byte_rate=9.0), ALL), (quota_row(D, producer_byte_rate=9.0), ALL_BY_USER)],
)
def test_a_row_that_it_would_hide_moves_it_and_without_the_row_it_comes_back(
    row: dict[str, Any], on: dict[EntryKey, float]
) -> None:
    synced = Synced(held=on)
    synced.load(row)
    synced.period()
    left = {key: value for key, value in on.items() if key.quota_type != PRODUCER}
    moved = {CLIENT: next(iter(on.values())), key_of(row["user"], row["client_id"]): 9.0}
    assert synced.ledger.held == {**left, **moved}
    synced.load()
    synced.period()
    assert synced.ledger.held == on


def test_it_may_be_switched_on_and_off_while_the_sync_runs() -> None:
    synced = Synced()
    synced.period()
    synced.others_write(PAIR, METERED)
    synced.load(quota_row("", "app", producer_byte_rate=9.0))
    synced.period()
    assert synced.ledger.held == {CLIENT: METERED, key_of("", "app"): 9.0}
    synced.others_write(CLIENT, None)
    assert synced.period() == []
    assert (set(synced.ledger.held), synced.sync.drifts) == ({key_of("", "app")}, ())
