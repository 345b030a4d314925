"""Records in Kafka's format (version 2) by columns: the same bytes as kafka-python writes one by one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from kafka.record.util import encode_varint

from schemas.throttle_messages import MessageColumns

if TYPE_CHECKING:
    from typing import TypeAlias

    Binaries: TypeAlias = pa.Array[Any]

Ints = npt.NDArray[np.int64]

_NO_ATTRIBUTES_SAME_TIME = b"\x00\x00"


def bodies_of(messages: MessageColumns) -> "Binaries":
    """What of each record does not depend on its place in a batch: key, value and headers with their lengths."""
    pieces: list[Binaries | bytes] = [*_with_length(messages.keys), *_with_length(messages.values)]
    pieces.append(_varint(len(messages.headers)))
    for name, values in messages.headers:
        pieces += [*_with_length(name.encode()), *_with_length(values)]
    return _joined(pieces)


def records_of(bodies: "Binaries", places: Ints) -> "Binaries":
    """Whole records, which all have the time of their batch.

    Args:
        bodies: As `bodies_of` makes them.
        places: Of each record in its batch; the first has 0.
    """
    offsets = _varints(places)
    sizes = len(_NO_ATTRIBUTES_SAME_TIME) + lengths_of(offsets) + lengths_of(bodies)
    return _joined([_varints(sizes), _NO_ATTRIBUTES_SAME_TIME, offsets, bodies])


def lengths_of(values: "Binaries") -> Ints:
    """The number of bytes of each value."""
    lengths: Ints = pc.binary_length(values).to_numpy().astype(np.int64)
    return lengths


def _with_length(value: "Binaries | bytes") -> "Sequence[Binaries | bytes]":
    if isinstance(value, bytes):
        return [_varint(len(value)) + value]
    return [_varints(lengths_of(value)), value]


def _varints(numbers: Ints) -> "Binaries":
    """Each number in Kafka's variable length; equal numbers are encoded once."""
    encoded = pa.array(numbers).dictionary_encode()
    each = [_varint(number) for number in encoded.dictionary.to_pylist()]
    return pa.array(each, pa.binary()).take(encoded.indices)


def _varint(number: int) -> bytes:
    written = bytearray()
    encode_varint(number, written.append)
    return bytes(written)


def _joined(pieces: "Sequence[Binaries | bytes]") -> "Binaries":
    merged: list[Any] = []
    for piece in pieces:
        if merged and isinstance(piece, bytes) and isinstance(merged[-1], bytes):
            merged[-1] += piece
        else:
            merged.append(piece)
    joined: Binaries = pc.binary_join_element_wise(*merged, b"")
    return joined
