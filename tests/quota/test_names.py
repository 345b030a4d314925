"""Names as hashes, and the table from keys to ids against a dictionary."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quota.usage import KeyIndex, NameColumn, Pair, Seeds

SEEDS = Seeds.draw()


def hashes(column: pa.Array) -> list[tuple[int, int]]:
    first, second = NameColumn(column, SEEDS).hash(0, len(column))
    return list(zip(first.tolist(), second.tolist(), strict=True))


@given(st.lists(st.one_of(st.text(max_size=40), st.none()), min_size=1, max_size=30), st.data())
@settings(max_examples=60)
def test_a_name_has_one_hash_however_it_is_stored(texts: list[str | None], data: st.DataObject) -> None:
    alone = [hashes(pa.array([text or ""]))[0] for text in texts]
    stored = pa.array(texts, pa.string())
    assert hashes(stored) == hashes(stored.cast(pa.large_string())) == hashes(stored.dictionary_encode()) == alone
    start = data.draw(st.integers(0, len(texts)))
    stop = data.draw(st.integers(start, len(texts)))
    assert hashes(stored.slice(start)) == alone[start:]
    assert NameColumn(stored, SEEDS).hash(start, stop)[0].tolist() == [first for first, _ in alone[start:stop]]


@pytest.mark.parametrize("size", range(26))
def test_names_that_differ_in_one_byte_or_in_length_differ_in_both_hashes(size: int) -> None:
    base = "a" * size
    others = [base[:i] + "b" + base[i + 1 :] for i in range(size)] + ["a" * (size + 1), base + "\0"]
    found = hashes(pa.array([base, *others]))
    for half in zip(*found, strict=True):
        assert len(set(half)) == len(found)


def test_bits_that_cancel_in_one_hash_do_not_cancel_in_the_other() -> None:
    # Flipping the top bit of a word flips two bits of the state. A second word that flips the same two undoes it.
    pairs = [(0, 0), (1 << 63, 1 << 63 | 1 << 31), (1 << 63, 1 << 63 | 1 << 34), (1 << 63, 1 << 63)]
    ends, words = pa.py_buffer(np.arange(0, 80, 16)), pa.py_buffer(np.array(pairs, np.uint64).tobytes())
    found = hashes(pa.Array.from_buffers(pa.large_string(), len(pairs), [None, ends, words]))
    assert len(set(found)) == len(found)
    assert found[0][0] == found[1][0], "the first half is known to be open to this, which is why there is a second"


# Only a few different halves, so that keys share slots and differ in one half only.
half = st.one_of(st.integers(0, 3), st.integers(0, 3).map(lambda top: top << 62), st.integers(0, (1 << 64) - 1))
keys = st.lists(st.tuples(half, st.integers(0, 2)), max_size=60)


def pair(rows: list[tuple[int, int]]) -> Pair:
    return np.array([first for first, _ in rows], np.uint64), np.array([second for _, second in rows], np.uint64)


@given(st.lists(keys, max_size=5), keys, st.data())
@settings(max_examples=100)
def test_ids_are_those_of_a_dictionary(
    batches: list[list[tuple[int, int]]], asked: list[tuple[int, int]], data: st.DataObject
) -> None:
    index, known = KeyIndex(), dict[tuple[int, int], int]()
    for rows in batches:
        ids, new = index.add(pair(rows))
        for row, number in zip(new.tolist(), range(len(known), len(known) + len(new)), strict=True):
            known[rows[row]] = number
        assert ids.tolist() == [known[row] for row in rows]
        assert len(index) == len(known)
    assert index.find(pair(asked)).tolist() == [known.get(row, -1) for row in asked]
    kept = data.draw(st.lists(st.booleans(), min_size=len(known), max_size=len(known)))
    index.keep(np.array(kept, np.bool_))
    left = [row for row, is_kept in zip(known, kept, strict=True) if is_kept]
    assert index.find(pair([*known])).tolist() == [left.index(row) if row in left else -1 for row in known]
