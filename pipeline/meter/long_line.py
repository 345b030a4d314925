"""A line of a request log that is too long to be kept: its beginning, its end, and the sizes named between them.

A client decides how long the line of its request is: a byte of a name can be six in the log. So memory must not follow
the length, and no length may hide what was used. Kafka's JSON has all that is needed, except the sizes, before the
request's body and behind the response's:

    {"isForwarded":…,"requestHeader":{…},"request":{…},"response":{…},"connection":…,"localTimeMs":…,"principal":…}

Keys are found as bytes, quoted and with their colon. No name that a client chooses can look like one: its quotes are
escaped in a JSON text.
"""

import re
from typing import Final

KEPT_BYTES: Final = 256 * 1024
"""The most that is kept of either end. A client-id of 32 KiB, the longest, may fill 192 KiB of a log."""

_SIZE: Final = re.compile(rb'"recordsSizeInBytes":(-?\d{1,10})[,}]')
_LONGEST_SIZE_BYTES: Final = 64
_ACKS: Final = re.compile(rb'"acks":(-?\d{1,5}),')


class LongLine:
    """Takes a line piece by piece. However it is cut, the outcome is the same."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.records_bytes = 0
        self._head = b""
        self._tail = b""
        self._unread = b""

    def __len__(self) -> int:
        """The bytes that are kept."""
        return len(self._head) + len(self._tail)

    def add(self, piece: bytes) -> None:
        """Take the next bytes of the line."""
        self.size_bytes += len(piece)
        if len(self._head) < KEPT_BYTES:
            self._head += piece[: KEPT_BYTES - len(self._head)]
        self._tail = (self._tail + piece if len(piece) < KEPT_BYTES else piece)[-KEPT_BYTES:]
        text, end = self._unread + piece, 0
        for size in _SIZE.finditer(text):
            self.records_bytes += max(int(size[1]), 0)
            end = size.end()
        self._unread = text[max(end, len(text) - _LONGEST_SIZE_BYTES) :]

    @property
    def moved_bytes(self) -> int:
        """At least what the request, or its response, had on the wire: its records, and the line for all the rest."""
        return self.records_bytes + self.size_bytes

    @property
    def acks(self) -> int | None:
        """The acks of a produce request; None if they are not found."""
        found = _ACKS.search(self._head)
        return int(found[1]) if found else None

    @property
    def shortened(self) -> bytes:
        """The line without both bodies; if their keys are not found, the beginning of the line."""
        before, after = self._head.find(b',"request":'), self._tail.rfind(b',"connection":')
        if before < 0 or after < 0:
            return self._head
        return self._head[:before] + b',"request":"","response":""' + self._tail[after:]


Line = bytes | LongLine


class OpenLine:
    """A line whose end was not read yet: kept whole, and from a limit on as a `LongLine`."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.size_bytes = 0
        self._pieces: list[bytes] = []
        self._long: LongLine | None = None

    def add(self, piece: bytes) -> None:
        """Take the next bytes of the line."""
        if not piece:
            return
        self.size_bytes += len(piece)
        if self._long is None and self.size_bytes > self.most_bytes:
            self._long = LongLine()
            for earlier in self._pieces:
                self._long.add(earlier)
            self._pieces = []
        if self._long is None:
            self._pieces.append(piece)
        else:
            self._long.add(piece)

    def take(self) -> Line:
        """The line, which ends here. The next one begins."""
        line = b"".join(self._pieces) if self._long is None else self._long
        self.size_bytes, self._pieces, self._long = 0, [], None
        return line
