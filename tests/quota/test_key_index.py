"""The table from keys to ids against a dictionary."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from quota.names import KeyIndex, Pair

U64 = np.uint64
# Only a few different halves, so that keys share slots and differ in one half only.
half = st.one_of(st.integers(0, 3), st.integers(0, 3).map(lambda top: top << 62), st.integers(0, (1 << 64) - 1))
keys = st.lists(st.tuples(half, st.integers(0, 2)), max_size=60)


def pair(rows: list[tuple[int, int]]) -> Pair:
    return np.array([first for first, _ in rows], U64), np.array([second for _, second in rows], U64)


@given(st.lists(keys, max_size=5), keys)
@settings(max_examples=100)
def test_ids_are_those_of_a_dictionary(batches: list[list[tuple[int, int]]], asked: list[tuple[int, int]]) -> None:
    index, known = KeyIndex(), dict[tuple[int, int], int]()
    for rows in batches:
        ids, new = index.add(pair(rows))
        for row, number in zip(new.tolist(), range(len(known), len(known) + len(new)), strict=True):
            known[rows[row]] = number
        assert ids.tolist() == [known[row] for row in rows]
        assert len(index) == len(known)
    assert index.find(pair(asked)).tolist() == [known.get(row, -1) for row in asked]


@given(keys, st.data())
def test_what_is_kept_is_numbered_anew_in_its_order(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    index = KeyIndex()
    ids, _ = index.add(pair(rows))
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(index), max_size=len(index))), np.bool_)
    index.keep(kept)
    places = np.where(kept, np.cumsum(kept) - 1, -1)
    assert index.find(pair(rows)).tolist() == places[ids].tolist()


def test_a_table_that_grew_finds_all_it_was_given() -> None:
    random = np.random.default_rng(7)
    everything = random.integers(0, 1 << 64, (2, 200_000), U64)
    index = KeyIndex()
    for start in range(0, 200_000, 30_000):
        part = everything[:, start : start + 30_000]
        ids, new = index.add((part[0], part[1]))
        assert len(new) == part.shape[1]
        assert index.find((part[0], part[1])).tolist() == ids.tolist()
    assert sorted(index.find((everything[0], everything[1])).tolist()) == list(range(200_000))
    assert (index.find((everything[1], everything[0])) == -1).all()
