"""The ids of the decisions of one batch, by columns. `schemas.decision_id` says what an id is."""

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.decision_id import DIGEST_BYTES, hasher_of_batch

if TYPE_CHECKING:  # pyarrow's classes are generic to its stubs only
    from typing import TypeAlias

    _Column: TypeAlias = pa.Array[Any]

_PARTS: Final = ("broker_id", "user", "client_id", "quota_type")
_LENGTH_BYTES: Final = 8
_DIGITS: Final = 2 * DIGEST_BYTES


def decision_id_column(decisions: pa.Table, *, cluster: str, query_id: str, batch_id: int) -> "_Column":
    """The id of each decision of a batch, the same as `decision_id` returns.

    Args:
        decisions: columns broker_id, user, client_id, quota_type; others are ignored. Strings, none of them null.
        cluster: the Kafka cluster.
        query_id: id of the streaming query.
        batch_id: number of the micro-batch.
    """
    shared = hasher_of_batch(cluster, query_id, batch_id)
    pieces = [piece for name in _PARTS for piece in _framed(decisions[name].combine_chunks())]
    digests = []
    for message in pc.binary_join_element_wise(*pieces, b"").to_pylist() if decisions.num_rows else ():
        hasher = shared.copy()
        hasher.update(message)
        digests.append(hasher.digest())
    offsets = np.arange(len(digests) + 1, dtype=np.int32) * _DIGITS
    digits = b"".join(digests).hex().encode()
    return pa.StringArray.from_buffers(len(digests), pa.py_buffer(offsets), pa.py_buffer(digits))


def _framed(part: "_Column") -> "tuple[_Column, _Column]":
    """The length of each name in bytes, as a big-endian number of eight bytes, and the name."""
    names = part.cast(pa.binary())
    lengths = pc.binary_length(names).to_numpy(zero_copy_only=False).astype(f">u{_LENGTH_BYTES}")
    framed = pa.Array.from_buffers(pa.binary(_LENGTH_BYTES), len(names), [None, pa.py_buffer(lengths)])
    return framed.cast(pa.binary()), names
