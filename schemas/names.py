"""Names that every part uses: the quota types, the topics, and the key of a client.

Imports nothing heavy, because every command needs it and `--help` must not wait.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

QuotaType = Literal["producer_byte_rate", "consumer_byte_rate", "request_percentage"]
"""What a quota bounds: Kafka's names of client quotas."""

USAGE_TOPIC: Final = "quota.usage.v1"
"""Usage events, from all meters."""
THROTTLE_TOPIC: Final = "quota.throttle.v1"
"""Throttles and releases, for all who enforce."""
MARKER_TOPIC: Final = "quota.marker.v1"
"""Holds no records: its committed offset says how far throttles are published."""


class ClientKey(NamedTuple):
    """Who is throttled. `broker_id` is "" in cluster scope. `client_id` may be ""."""

    broker_id: str
    user: str
    client_id: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "ClientKey":
        """The client of a row with these columns."""
        return cls(row["broker_id"], row["user"], row["client_id"])
