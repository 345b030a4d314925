"""The events of one transaction: JSON arrays, by partition."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_EVENTS: Final = 100
"""The most events of one message."""

MAX_MESSAGE_BYTES: Final = 512 * 1024
"""The most bytes of a message with several events. A message with one event may have more."""


class Element(NamedTuple):
    """One event.

    Attributes:
        client: A number made of user and client-id: all events of a client go to one partition.
        value: JSON.
    """

    client: int
    value: bytes


class Message(NamedTuple):
    """One message of the usage topic: an array of events."""

    partition: int
    value: bytes


@dataclass(slots=True)
class _Open:
    elements: list[bytes]
    size_bytes: int = 0


class UsageBatch:
    """Collects events until they are sent. One thread.

    Args:
        partition_count: Of the topic.
        max_events: The most events of one message.
        max_message_bytes: See `MAX_MESSAGE_BYTES`.
    """

    def __init__(
        self, partition_count: int, max_events: int = MAX_EVENTS, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        self._open = [_Open([]) for _ in range(partition_count)]
        self._max_events = max_events
        self._max_message_bytes = max_message_bytes
        self._closed: list[Message] = []
        self._events = 0

    def __len__(self) -> int:
        """The number of events that are collected."""
        return self._events

    def add(self, elements: Iterable[tuple[int, bytes]]) -> None:
        """Add events, as `Element`."""
        partitions, most, largest = self._open, self._max_events, self._max_message_bytes - 1
        count = len(partitions)
        for client, value in elements:
            partition = client % count
            message = partitions[partition]
            size_bytes = message.size_bytes + len(value) + 1
            if size_bytes > largest and message.elements:
                self._close(partition)
                size_bytes = len(value) + 1
            message.elements.append(value)
            message.size_bytes = size_bytes
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
        self._closed.append(Message(partition, b"[" + b",".join(message.elements) + b"]"))
        message.elements.clear()
        message.size_bytes = 0
