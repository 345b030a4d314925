"""The id of a decision. The same decision has the same id, however often its batch is run again."""

import hashlib
from collections.abc import Sequence
from typing import Final

DIGEST_BYTES: Final = 8
"""The number of bytes of the hash that an id has."""


def decision_id(
    *, cluster: str, query_id: str, batch_id: int, broker_id: str, user: str, client_id: str, quota_type: str
) -> str:
    """The id of one decision.

    Returns:
        16 hexadecimal digits, lower case: BLAKE2b over the parts. Each part is preceded by its length in bytes, so that
        different lists of parts never give the same bytes ("a", "bc" and "ab", "c" differ).
    """
    return decision_ids(
        cluster=cluster,
        query_id=query_id,
        batch_id=batch_id,
        broker_ids=[broker_id],
        users=[user],
        client_ids=[client_id],
        quota_types=[quota_type],
    )[0]


def decision_ids(
    *,
    cluster: str,
    query_id: str,
    batch_id: int,
    broker_ids: Sequence[str],
    users: Sequence[str],
    client_ids: Sequence[str],
    quota_types: Sequence[str],
) -> list[str]:
    """The ids of the decisions of one batch. The parts that they share are hashed only once.

    Args:
        cluster: the Kafka cluster.
        query_id: id of the streaming query.
        batch_id: number of the micro-batch.
        broker_ids: per decision, "" in cluster scope.
        users: per decision.
        client_ids: per decision.
        quota_types: per decision.

    Returns:
        One id per position, the same as `decision_id` returns.

    Raises:
        ValueError: the four sequences have different lengths.
    """
    shared = hasher_of_batch(cluster, query_id, batch_id)
    ids = []
    for parts in zip(broker_ids, users, client_ids, quota_types, strict=True):
        hasher = shared.copy()
        hasher.update(b"".join(map(_encoded, parts)))
        ids.append(hasher.hexdigest())
    return ids


def hasher_of_batch(cluster: str, query_id: str, batch_id: int) -> "hashlib.blake2b":
    """The hash over the parts that all decisions of a batch share; to be copied for each."""
    return hashlib.blake2b(_encoded(cluster) + _encoded(query_id) + _encoded(str(batch_id)), digest_size=DIGEST_BYTES)


def _encoded(part: str) -> bytes:
    # surrogatepass: a name in JSON can contain a lone surrogate. It must get an id, not an exception.
    text = part.encode("utf-8", "surrogatepass")
    return len(text).to_bytes(8, "big") + text
