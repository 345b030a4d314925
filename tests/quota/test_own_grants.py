"""Entries of sensors of defaults: asked for once, and answered until the quotas change."""

from collections.abc import Sequence

import pytest

from quota.broker_levels import entries
from quota.broker_levels.entries import EntryKey, OwnGrants, own_entries
from quota.snapshot import QuotaSnapshot
from tests.quota.factories import quota_row
from tests.quota.synced import D, key_of

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


def test_who_needs_none_any_more_is_forgotten_and_may_ask_again() -> None:
    grants = OwnGrants()
    grants.load(HIDING)
    grants.ask([BOB, ERIN])
    grants.forget([BOB, ERIN, CAROL])
    assert (grants.granted, grants.refused) == ({}, {})
    grants.ask([ERIN])
    assert list(grants.granted) == [ERIN]


def test_only_new_sensors_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[EntryKey] = []

    def counted(snapshot: QuotaSnapshot, sensors: Sequence[EntryKey]) -> object:
        asked.extend(sensors)
        return own_entries(snapshot, sensors)

    monkeypatch.setattr(entries, "own_entries", counted)
    grants = OwnGrants()
    grants.load(HIDING)
    for number in range(4):
        grants.ask([BOB, ERIN, *(key_of("erin", f"etl-{one}") for one in range(number))])
    assert len(asked) == len(set(asked)) == 5


def test_those_that_may_ask_later_are_not_left_out() -> None:
    grants = OwnGrants()
    grants.load(PLAIN)
    grants.ask([BOB, CAROL], most=1)
    assert (list(grants.granted), dict(grants.left_out)) == ([BOB], {})
    grants.ask([BOB, CAROL], most=1)
    assert list(grants.granted) == [BOB, CAROL]
