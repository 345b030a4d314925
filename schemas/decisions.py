"""Decisions: a client that violates a quota, and the throttle time that follows, as a row of `decisions`; and its id.

The same decision has the same id, however often its batch is run again.
"""

import hashlib
from collections.abc import Iterable
from typing import Annotated, Final, Literal

from schemas import columns as c

_DIGEST_BYTES: Final = 8


def decision_id(
    *, cluster: str, query_id: str, batch_id: int, broker_id: str, user: str, client_id: str, quota_type: str
) -> str:
    """The id of one decision.

    Returns:
        16 hexadecimal digits, lower case: BLAKE2b over the parts. Each part is preceded by its length in bytes, so that
        different lists of parts never give the same bytes ("a", "bc" and "ab", "c" differ).
    """
    client = broker_id, user, client_id, quota_type
    return decision_ids([client], cluster=cluster, query_id=query_id, batch_id=batch_id)[0]


def decision_ids(decisions: Iterable[tuple[str, ...]], *, cluster: str, query_id: str, batch_id: int) -> list[str]:
    """The `decision_id` of each decision of a batch, by its broker_id, user, client_id and quota_type."""
    shared = hashlib.blake2b(
        _encoded(cluster) + _encoded(query_id) + _encoded(str(batch_id)), digest_size=_DIGEST_BYTES
    )
    ids = []
    for parts in decisions:
        hasher = shared.copy()
        hasher.update(b"".join(map(_encoded, parts)))
        ids.append(hasher.hexdigest())
    return ids


def _encoded(part: str) -> bytes:
    # surrogatepass: a name in JSON can contain a lone surrogate. It must get an id, not an exception.
    text = part.encode("utf-8", "surrogatepass")
    return len(text).to_bytes(8, "big") + text


class DecisionRow(c.PipelineRow):
    """A violated quota of one client in one batch, with all figures from which its throttle time is computed."""

    batch_id: c.Number = c.field("The micro-batch.")
    time_epoch: c.Number = c.TIME_EPOCH
    evaluated_at_ms: c.EpochMs = c.field("The instant it was evaluated at, in event time.")
    evaluated_at: c.Instant = c.field("`evaluated_at_ms` as a timestamp.")
    broker_id: c.Name = c.field('The broker in broker scope; "" in cluster scope.')
    user: c.Name = c.field("The user that sent the usage.")
    client_id: c.Name = c.field("The client-id that sent the usage.")
    quota_type: c.QuotaTypeName = c.field("The violated quota.")
    observed: c.Rate = c.field("O, the rate over the window.")
    bound: c.Rate = c.field("T, the quota.")
    window_ms: c.DurationMs = c.field("W, the span the rate was measured over.")
    raw_throttle_time_ms: c.DurationMs = c.field("X = (O − T) / T · W, rounded, before the cap.")
    max_throttle_time_ms: c.DurationMs | None = c.field("The cap; null for none.")
    throttle_time_ms: c.DurationMs = c.field("X after the cap.")
    level: c.Number = c.field("Which of the 8 levels of quotas matched; 1 is the most specific.", ge=1, le=8)
    sensor_user: c.Name = c.field('User part of the sensor; "" if it is not part of it.')
    sensor_client_id: c.Name = c.field('Client-id part of the sensor; "" if it is not part of it.')
    mode: Annotated[Literal["enforce", "shadow"], c.Unit("mode")] = c.field(
        "Of the quota. `shadow`: recorded, never published."
    )
    applied: c.Flag = c.field("True for the one quota whose throttle time applies to the client.")
    decision_id: c.Name = c.field("The id in the throttle's records.")
    quota_version: c.Number = c.field("Version of the quota table.")
    date: c.Day = c.field("UTC day of `evaluated_at_ms`; the partition.")
