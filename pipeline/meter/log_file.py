"""One file of a log, compressed or not.

Places in it count bytes of its text, so they stay the same when it is compressed. A file is known again by its head: a
digest of its first bytes. Lines of a log begin with their time, so two files of a log do not begin alike.
"""

import gzip
import hashlib
import os
import zlib
from pathlib import Path
from typing import Any, Final, NamedTuple

from pipeline.meter.rolled_files import GZIP

HEAD_BYTES: Final = 1024
_TIME_BYTES: Final = 24
UNREADABLE: Final = (EOFError, zlib.error, gzip.BadGzipFile)
"""What reading a compressed file raises that is damaged, or still being written."""


class Head(NamedTuple):
    """The beginning of a file.

    Attributes:
        size_bytes: How much of it is meant.
        sha256: Hex digest of that.
        first: Its first bytes, the time of the first line.
    """

    size_bytes: int
    sha256: str
    first: bytes = b""

    def is_of(self, size_bytes: int, sha256: str) -> bool:
        """Whether size and digest are these."""
        return (self.size_bytes, self.sha256) == (size_bytes, sha256)


class LogFile:
    """An opened file. One thread.

    Args:
        path: Where it is; `.gz` at the end means compressed.

    Raises:
        OSError: It can not be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._raw = path.open("rb")
        self.is_compressed = path.suffix == GZIP
        self._text: Any = gzip.GzipFile(fileobj=self._raw) if self.is_compressed else self._raw
        self._head = b""

    @property
    def inode(self) -> int:
        """Number of the file in its file system."""
        return self._status.st_ino

    @property
    def modified_ns(self) -> int:
        """When it was last changed."""
        return self._status.st_mtime_ns

    def is_at(self, path: Path) -> bool:
        """Whether this very file is at a path now.

        Raises:
            FileNotFoundError: No file is there.
        """
        there, mine = path.stat(), self._status
        return (there.st_ino, there.st_dev) == (mine.st_ino, mine.st_dev)

    def read(self, size_bytes: int) -> bytes:
        """The next bytes of text, at most `size_bytes`; none at the end.

        Raises:
            EOFError, zlib.error, OSError: It is compressed, and damaged or not complete.
        """
        text: bytes = self._text.read(size_bytes)
        if not self.is_compressed:
            self.head()  # while it is there: the file may be cut
        return text

    def is_cut(self) -> bool:
        """Whether the file is now shorter than what was read of it."""
        return not self.is_compressed and self._status.st_size < self._raw.tell()

    def seek(self, offset_bytes: int) -> bool:
        """Go to a place in the text; False if it ends before.

        Raises:
            EOFError, zlib.error, OSError: As of `read`.
        """
        if not self.is_compressed and self._status.st_size < offset_bytes:
            return False
        reached: int = self._text.seek(offset_bytes)
        return reached == offset_bytes

    def head(self, size_bytes: int = HEAD_BYTES) -> Head:
        """Of the first `size_bytes` at most, or of all that is there now. It stays the same when the file is cut.

        Raises:
            EOFError, zlib.error, OSError: As of `read`.
        """
        if len(self._head) < HEAD_BYTES:
            now = self._begin()
            self._head = now if now.startswith(self._head) else self._head
        begin = self._head[:size_bytes]
        return Head(len(begin), hashlib.sha256(begin).hexdigest(), begin[:_TIME_BYTES])

    def any_head(self) -> Head:
        """As `head`; of a file that is too damaged for that, the head of its bytes as they are, without `first`."""
        try:
            return self.head()
        except (OSError, *UNREADABLE):
            begin = os.pread(self._raw.fileno(), HEAD_BYTES, 0)
            return Head(len(begin), hashlib.sha256(begin).hexdigest())

    def close(self) -> None:
        """Close it."""
        self._text.close()
        self._raw.close()

    def _begin(self) -> bytes:
        if not self.is_compressed:
            return os.pread(self._raw.fileno(), HEAD_BYTES, 0)
        place = self._text.tell()
        self._text.seek(0)
        begin: bytes = self._text.read(HEAD_BYTES)
        self._text.seek(place)
        return begin

    @property
    def _status(self) -> os.stat_result:
        return os.fstat(self._raw.fileno())


def head_of(path: Path, size_bytes: int = HEAD_BYTES) -> Head | None:
    """The head of the file at a path; None if it is gone, or may not be read. `any_head` if it is damaged."""
    try:
        file = LogFile(path)
    except OSError:
        return None
    try:
        return file.head(size_bytes)
    except (OSError, *UNREADABLE):
        return file.any_head()
    finally:
        file.close()
