"""How the events of a meter become messages: arrays of JSON objects, or packed messages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.meter.usage_element import RequestUsage, element_of


@dataclass(frozen=True, slots=True)
class UsageCodec:
    """One way to write events.

    Attributes:
        element: What is kept of a request until its message is made: the number of its client (see `Element`), and what
            `size_bytes` and `message` take. Raises ValueError if a measure can not be in a usage event.
        size_bytes: The most that one of them adds to a message.
        message: The value of a message of some of them, in their order.
        opening_bytes: The most that a message has besides them.
        max_events: The most events of one message.
        is_packed: Whether it writes packed messages.
    """

    element: Callable[[RequestUsage], tuple[int, Any]]
    size_bytes: Callable[[Any], int]
    message: Callable[[Sequence[Any]], bytes]
    opening_bytes: int
    max_events: int
    is_packed: bool


def _array(elements: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(elements) + b"]"


def _with_comma(element: bytes) -> int:
    return len(element) + 1


JSON: Final = UsageCodec(element_of, _with_comma, _array, opening_bytes=1, max_events=100, is_packed=False)
