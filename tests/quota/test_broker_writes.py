"""Writes, and what is owned after them."""

from dataclasses import replace

import pytest

from quota.broker_levels.entries import EntryKey, EntryKind
from quota.broker_levels.level_control import Cause
from quota.broker_levels.writes import WORDS, Change, Owned

KEY = EntryKey("alice", "", "producer_byte_rate")
LEVEL = Change(KEY, 100.0, 35.0, 100.0, EntryKind.LEVEL, {"1": None}, "together_above", 7.0, 5)


def test_a_write_says_what_is_owned_afterwards() -> None:
    assert LEVEL.owned(9) == Owned(7.0, 35.0, EntryKind.LEVEL, 100.0, 9, 5)
    assert replace(LEVEL, new=7.0, bound=None, kind=None, cause="given_back").owned(9) is None


def test_every_cause_of_a_level_has_words() -> None:
    assert {cause.name.lower() for cause in Cause} < WORDS.keys()


@pytest.mark.parametrize("cause", WORDS)
def test_the_causes_of_levels_are_moves(cause: str) -> None:
    change = replace(LEVEL, cause=cause)
    assert change.is_move is (cause in {one.name.lower() for one in Cause})
