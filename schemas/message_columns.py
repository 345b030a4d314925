"""Messages as a producer sends them, by columns and one by one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from schemas.json_columns import Texts

Header = tuple[str, bytes]


class Message(NamedTuple):
    """A record as a producer sends it."""

    key: bytes
    value: bytes
    headers: list[Header]


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """Keys, values and headers of many messages.

    Attributes:
        keys: Binary.
        values: Binary, as many.
        headers: In their order. Names, with binary values of the messages, as many; or with the bytes they all share.
    """

    keys: "Texts"
    values: "Texts"
    headers: "tuple[tuple[str, Texts | bytes], ...]"

    def __len__(self) -> int:
        return len(self.keys)

    def messages(self) -> list[Message]:
        """The same one by one."""
        headers = [_repeated(name, values, len(self)) for name, values in self.headers]
        each = map(list, zip(*headers, strict=True)) if headers else ([] for _ in range(len(self)))
        return list(map(Message, self.keys.to_pylist(), self.values.to_pylist(), each))


def _repeated(name: str, values: "Texts | bytes", times: int) -> list[Header]:
    if isinstance(values, bytes):
        return [(name, values)] * times
    return [(name, value) for value in values.to_pylist()]
