"""The events of one transaction: messages of several events, by partition."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pipeline.meter.usage_codec import JSON, UsageCodec

MAX_MESSAGE_BYTES: Final = 512 * 1024
"""The most bytes of a message with several events. A message with one event may have more."""


class Element(NamedTuple):
    """One event.

    Attributes:
        client: A number made of user and client-id: all events of a client go to one partition.
        value: As the codec keeps it.
    """

    client: int
    value: Any


class Message(NamedTuple):
    """One message of the usage topic: some events."""

    partition: int
    value: bytes


@dataclass(slots=True)
class _Open:
    elements: list[Any]
    size_bytes: int = 0


class UsageBatch:
    """Collects events until they are sent. One thread.

    Args:
        partition_count: Of the topic.
        codec: What was used to make the elements.
        max_events: The most events of one message; None: as many as is good for the codec.
        max_message_bytes: See `MAX_MESSAGE_BYTES`.
    """

    def __init__(
        self,
        partition_count: int,
        codec: UsageCodec = JSON,
        max_events: int | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._open = [_Open([]) for _ in range(partition_count)]
        self._codec = codec
        self._max_events = codec.max_events if max_events is None else max_events
        self._largest_bytes = max_message_bytes - codec.opening_bytes
        self._closed: list[Message] = []
        self._events = 0

    def __len__(self) -> int:
        """The number of events that are collected."""
        return self._events

    def add(self, elements: Iterable[tuple[int, Any]]) -> None:
        """Add events, as `Element`."""
        partitions, most, largest, size_of = self._open, self._max_events, self._largest_bytes, self._codec.size_bytes
        count = len(partitions)
        for client, value in elements:
            partition = client % count
            message = partitions[partition]
            added_bytes = size_of(value)
            if message.size_bytes + added_bytes > largest and message.elements:
                self._close(partition)
            message.elements.append(value)
            message.size_bytes += added_bytes
            self._events += 1
            if len(message.elements) >= most:
                self._close(partition)

    def messages(self) -> list[Message]:
        """All that was added since `clear`, in the order of each partition."""
        for partition, message in enumerate(self._open):
            if message.elements:
                self._close(partition)
        return self._closed

    def clear(self) -> None:
        """Forget all events: they are stored."""
        self.messages()
        self._closed = []
        self._events = 0

    def _close(self, partition: int) -> None:
        message = self._open[partition]
        self._closed.append(Message(partition, self._codec.message(message.elements)))
        message.elements.clear()
        message.size_bytes = 0
