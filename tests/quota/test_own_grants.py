"""Entries of sensors of defaults: asked for once, and answered until the quotas change."""

from quota.broker_levels.entries import OwnGrants
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
