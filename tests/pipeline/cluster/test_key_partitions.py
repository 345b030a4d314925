"""Each key goes where kafka-python's own partitioner sends it."""

from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from pipeline.cluster.column_sender import murmur2_of, partitions_of

# More keys than are hashed one by one, and of lengths that end at each place of a word.
many_keys = st.lists(st.binary(max_size=40), min_size=1, max_size=12).map(lambda some: some * 40)
keys = st.lists(st.binary(max_size=40), max_size=12) | many_keys


def column(keys: list[bytes], left_out: int = 0) -> "pa.Array[Any]":
    return pa.array([b"left out"] * left_out + keys, pa.binary()).slice(left_out)


@given(keys, st.integers(0, 3), st.integers(1, 7))
@example([b"x" * length for length in range(150)] + [b"y" * 9_000], 0, 5)
def test_a_key_goes_to_the_partition_that_the_librarys_partitioner_takes(
    keys: list[bytes], left_out: int, count: int
) -> None:
    hashes = [murmur2(key) for key in keys]
    some = column(keys, left_out)
    assert murmur2_of(some).tolist() == hashes
    assert partitions_of(some, count).tolist() == [(one & 0x7FFFFFFF) % count for one in hashes]
