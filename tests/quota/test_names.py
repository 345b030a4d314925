"""Names as hashes: equal names have equal hashes however they are stored, different names have different ones."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quota.names import DictionaryMemo, NameColumn, Seeds

SEEDS = Seeds.draw()


def hashes(column: pa.Array) -> list[tuple[int, int]]:
    first, second = NameColumn(column, SEEDS).hash(0, len(column))
    return list(zip(first.tolist(), second.tolist(), strict=True))


names = st.lists(st.one_of(st.text(max_size=40), st.none()), min_size=1, max_size=30)


@given(names, st.data())
@settings(max_examples=60)
def test_a_name_has_one_hash_however_it_is_stored(texts: list[str | None], data: st.DataObject) -> None:
    alone = [hashes(pa.array([text or ""]))[0] for text in texts]
    assert hashes(pa.array(texts, pa.string())) == alone
    assert hashes(pa.array(texts, pa.large_string())) == alone
    assert hashes(pa.array(texts, pa.string()).dictionary_encode()) == alone
    start = data.draw(st.integers(0, len(texts)))
    assert hashes(pa.array(["before", *texts], pa.string()).slice(1 + start)) == alone[start:]
    column = NameColumn(pa.array(texts, pa.string()), SEEDS)
    stop = data.draw(st.integers(start, len(texts)))
    assert column.hash(start, stop)[0].tolist() == [first for first, _ in alone[start:stop]]


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
    words = np.array(pairs, np.uint64)
    column = pa.Array.from_buffers(
        pa.large_string(), len(pairs), [None, pa.py_buffer(np.arange(0, 80, 16)), pa.py_buffer(words.tobytes())]
    )
    found = hashes(column)
    assert len(set(found)) == len(found)
    assert found[0][0] == found[1][0], "the first half is known to be open to this, which is why there is a second"


def test_a_million_numbered_names_do_not_collide_in_either_half() -> None:
    column = pa.array(np.arange(1_000_000)).cast(pa.string())
    for half in NameColumn(column, SEEDS).hash(0, len(column)):
        assert all(one != other for one, other in pairwise(np.sort(half).tolist()))


def test_a_memo_knows_the_dictionary_of_another_slice_and_no_equal_one() -> None:
    memo = DictionaryMemo()
    column = pa.array(["alice", "bob", "alice", None]).dictionary_encode()
    whole = NameColumn(column, SEEDS, memo).hash(0, 4)
    part = NameColumn(column.slice(2), SEEDS, memo).hash(0, 2)
    assert [half.tolist() for half in part] == [half[2:].tolist() for half in whole]
    assert memo.find(column.slice(1).dictionary) is not None
    assert memo.find(pa.array(["alice", "bob"])) is None


def test_another_dictionary_with_the_same_codes_gives_other_hashes() -> None:
    memo = DictionaryMemo()
    for names in (["alice", "bob"], ["carol", "dave"], ["alice", "bob"]):
        column = pa.array(names).dictionary_encode()
        again, plain = NameColumn(column, SEEDS, memo).hash(0, 2), NameColumn(pa.array(names), SEEDS).hash(0, 2)
        assert [half.tolist() for half in again] == [half.tolist() for half in plain]
