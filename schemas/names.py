"""Names that every part uses: the quota types, the topics, the key of a client, and the errors of this package.

SchemaError
├── UnsupportedFieldType   a model has a field whose type is not in the type table
├── UnreadableRecord       the value of a topic record is not what its schema says
└── RowsDoNotFit           an Arrow table cannot be made into rows of a model

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


class SchemaError(Exception):
    """Root of the errors of this package."""


class UnsupportedFieldType(SchemaError):
    """The Python type of a field of a model is not in the type table."""

    def __init__(self, model: str, field: str, annotation: object) -> None:
        super().__init__(f"{model}.{field} has the type {annotation}, which is not in the type table")


class UnreadableRecord(SchemaError):
    """The value of a topic record cannot be read: the name of its model, the cause in one line, the bytes received."""

    def __init__(self, record: str, cause: str, value: bytes) -> None:
        self.record = record
        self.cause = cause
        self.value = value
        super().__init__(f"the value is not a {record}: {cause}")


class RowsDoNotFit(SchemaError):
    """An Arrow table lacks a column of a model, or has values that do not fit: the cause, in one line."""

    def __init__(self, model: str, cause: str) -> None:
        self.model = model
        self.cause = cause
        super().__init__(f"the table cannot be made into rows of {model}: {cause}")
