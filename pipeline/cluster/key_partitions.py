"""To which partition each key belongs: what kafka-python's default partitioner says, for a column of keys."""

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from kafka.partitioner.default import murmur2

if TYPE_CHECKING:
    import pyarrow as pa

Ints = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint32]

_SEED: Final = np.uint32(0x9747B28C)
_MIX: Final = np.uint32(0x5BD1E995)
_POSITIVE: Final = 0x7FFFFFFF
_WORD_BYTES: Final = 4
_FEW: Final = 100  # keys that one step over columns must have, to be quicker than a step for each


def partitions_of(keys: "pa.Array[Any]", count: int) -> Ints:
    """The partition of each key.

    Args:
        keys: Binary, without nulls.
        count: Of the topic's partitions, > 0.
    """
    hashes = murmur2_of(keys).astype(np.int64)
    partitions: Ints = (hashes & _POSITIVE) % count
    return partitions


def murmur2_of(keys: "pa.Array[Any]") -> _Words:
    """The hash of each key. Keys that are longer than nearly all others are hashed one by one."""
    _, offsets, data = keys.buffers()
    ends = np.frombuffer(offsets, np.int32, len(keys) + 1, keys.offset * _WORD_BYTES).astype(np.int64)
    lengths = np.diff(ends)
    text = np.zeros(ends[-1] + _WORD_BYTES, np.uint8)  # so that a word can be read from each place
    text[: ends[-1]] = np.frombuffer(data or b"", np.uint8, ends[-1])
    longest = _bytes_in_columns(lengths)
    in_columns = np.flatnonzero(lengths <= longest)
    hashes = np.empty(len(keys), np.uint32)
    hashes[in_columns] = _hashed(text, ends[:-1][in_columns], lengths[in_columns])
    for place in np.flatnonzero(lengths > longest):
        hashes[place] = murmur2(keys[int(place)].as_py())
    return hashes


def _bytes_in_columns(lengths: Ints) -> int:
    """Such a length that at most a few keys are longer."""
    if len(lengths) <= _FEW:
        return 0
    return int(np.partition(lengths, -_FEW - 1)[-_FEW - 1])


def _hashed(text: npt.NDArray[np.uint8], starts: Ints, lengths: Ints) -> _Words:
    words: Any = np.ndarray(len(text) - _WORD_BYTES + 1, "<u4", text.data, strides=(1,))  # from each place
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    hashes = _SEED ^ lengths.astype(np.uint32)
    num_words = lengths // _WORD_BYTES
    for step in range(int(num_words.max(initial=0))):
        # The longest keys come first, so those that still have a word are the first ones.
        still = np.searchsorted(-num_words, -step, side="left")
        word = words[starts[:still] + _WORD_BYTES * step] * _MIX
        word ^= word >> 24
        hashes[:still] = hashes[:still] * _MIX ^ word * _MIX
    rest = lengths % _WORD_BYTES
    tail = words[starts + lengths - rest] & ((1 << (8 * rest)) - 1).astype(np.uint32)
    hashes = np.where(rest > 0, (hashes ^ tail) * _MIX, hashes)
    hashes ^= hashes >> 13
    hashes *= _MIX
    hashes ^= hashes >> 15
    unsorted = np.empty_like(hashes)
    unsorted[order] = hashes
    return unsorted
