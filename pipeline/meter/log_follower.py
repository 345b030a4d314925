"""Follows a growing log file over rolling, compression, truncation and restarts of the reader.

It does not know what the lines mean; `LongLine` keeps the counted part of one that is too long. One thread.

Guaranteed: each line is handed out once, if its file is in the folder when the reader gets to it, as it was written or
compressed with gzip. A reader that resumes at a saved place gets the lines after it and none before it. Not guaranteed:
lines of a file that was deleted before they were read are lost, and so are those of a file that was truncated, unless a
copy was rolled before. A file that is truncated and written beyond the old place between two reads is not noticed. The
last line of a file that is left without a line end is handed out as it is.
"""

import gzip
import hashlib
import logging
import os
import re
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, StringConstraints

from pipeline.meter.long_line import Line, LongLine, OpenLine

# Names of rolled files. The log `kafka-request.log` is rolled into `kafka-request.log.1`,
# `kafka-request.log.2026-11-21-07` and the like: the whole name, one of `. - _`, and anything. Or into
# `kafka-request-2026-11-21.log` and the like: a date, and further digits, before the extension. Another number there
# does not count, because `kafka-request-1.log` and `kafka-request-10.log` are the logs of two brokers. Each of them may
# be compressed: then `.gz` follows. Files that are compressed in another way do not count.

GZIP: Final = ".gz"
_COMPRESSED: Final = frozenset({".zip", ".bz2", ".xz", ".zst", ".Z", ".deflate", ".pack200"})
_YEAR_FIRST: Final = r"(19|20)\d\d[._-]?(0[1-9]|1[0-2])[._-]?(0[1-9]|[12]\d|3[01])"
_YEAR_LAST: Final = r"[0-3]\d[._-][0-3]\d[._-](19|20)\d\d"
_DATED: Final = rf"[._-]({_YEAR_FIRST}|{_YEAR_LAST})[\dT._-]*"


def rolled_files(log: Path) -> list[tuple[int, Path]]:
    """The files rolled from a log, oldest first, without the log itself. Empty if the folder cannot be read.

    Of each when it was last changed, in ns; of a compressed one that is when it was compressed.
    """
    whole, stem, extension = map(re.escape, (log.name, log.stem, log.suffix))
    is_rolled = re.compile(rf"{whole}[._-].+|{stem}{_DATED}{extension}(\{GZIP})?", re.DOTALL).fullmatch
    found = []
    with suppress(OSError):
        for path in log.parent.iterdir():
            if path.suffix in _COMPRESSED or path.name == f"{log.name}{GZIP}" or not is_rolled(path.name):
                continue
            with suppress(OSError):  # it was deleted a moment ago
                if path.is_file():
                    found.append((path.stat().st_mtime_ns, path))
    return sorted(found)


# One file of a log, compressed or not. Places in it count bytes of its text, so they stay the same when it is
# compressed. A file is known again by its head: a digest of its first bytes. Lines of a log begin with their time, so
# two files of a log do not begin alike.

HEAD_BYTES: Final = 1024
_TIME_BYTES: Final = 24
UNREADABLE: Final = (EOFError, zlib.error, gzip.BadGzipFile)
"""What reading a compressed file raises that is damaged, or still being written."""


class Head(NamedTuple):
    """The beginning of a file; `first` are its first bytes, the time of the first line."""

    size_bytes: int
    sha256: str
    first: bytes = b""


class LogFile:
    """An opened file. One thread.

    Args:
        path: Where it is; `.gz` at the end means compressed.

    Raises:
        OSError: It cannot be opened.
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
        """Whether this very file is at a path now; `FileNotFoundError` if none is there."""
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
        """Go to a place in the text; False if it ends before. Raises as `read`."""
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

    def any_head(self, size_bytes: int = HEAD_BYTES) -> Head:
        """As `head`; of a file that is too damaged for that, the head of its bytes as they are, without `first`."""
        try:
            return self.head(size_bytes)
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
    """`any_head` of the file at a path; None if it is gone, or may not be read."""
    try:
        file = LogFile(path)
    except OSError:
        return None
    with closing(file):
        return file.any_head(size_bytes)


# A place that another process finds after the file was renamed or compressed.

PASSED_FILES: Final = 8
_SHORT_DIGITS: Final = 16

HexDigits = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]*$")]


class LogPlace(BaseModel):
    """Between two lines of one file.

    Attributes:
        inode: Of the file; 0 if there was none yet.
        offset_bytes: Of the first line that was not dealt with yet, in the file's text.
        head_bytes: How many bytes from the start of the file `head_sha256` covers. The file system uses the inode
            number of a deleted file again, but the new file begins with other bytes.
        head_sha256: Hex digest of these bytes.
        passed_until_ns: Every rolled file that was last changed then or before has been dealt with. None: not known,
            as in what earlier releases have stored.
        passed: Files that have been dealt with since, oldest first: the first digits of their head's digest, and when
            they were last changed, in ns.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    inode: NonNegativeInt
    offset_bytes: NonNegativeInt
    head_bytes: Annotated[int, Field(ge=0, le=HEAD_BYTES)]
    head_sha256: HexDigits
    passed_until_ns: NonNegativeInt | None = None
    passed: Annotated[list[tuple[HexDigits, NonNegativeInt]], Field(max_length=PASSED_FILES)] = []


class PassedFiles:
    """The rolled files that a reader has dealt with: all up to a time, and the newest ones by their heads.

    A file that is compressed has a later time and the same head. Files are compressed one by one, each before the next
    but one is rolled. So the time follows when some younger files are known by their heads.

    Args:
        until_ns: Every file that was last changed then or before.
    """

    def __init__(self, until_ns: int = 0, passed: Iterable[tuple[str, int]] = ()) -> None:
        self.until_ns = until_ns
        self.passed = deque(passed)

    def add(self, head: Head, modified_ns: int) -> None:
        """A file was dealt with. One that was empty has nothing to know it by, and nothing to lose."""
        if not head.size_bytes:
            return
        self.passed.append((head.sha256[:_SHORT_DIGITS], modified_ns))
        if len(self.passed) > PASSED_FILES:
            self.passed.popleft()
            younger = list(self.passed)[PASSED_FILES // 2 :]
            self.until_ns = max(self.until_ns, min(modified_ns for _, modified_ns in younger))

    def has(self, head: Head) -> bool:
        """Whether a file of this head is among those that are known by it."""
        return any(head.sha256.startswith(digits) for digits, _ in self.passed)


# The files of a log in its folder: read, unread, and the one of a place.


def all_passed(log: Path) -> PassedFiles:
    """All files next to a log now, also while one is being compressed."""
    files = rolled_files(log)
    passed = PassedFiles(files[-1][0] if files else 0)
    for modified_ns, path in files[-PASSED_FILES:]:
        head = head_of(path)
        if head is not None:
            passed.add(head, modified_ns)
    return passed


def unread(log: Path, passed: PassedFiles) -> list[Path]:
    """The rolled files that were not dealt with yet, in the order of their first lines, which begin with a time.

    Times of change would not do: a file may be compressed while the next one is written and rolled. Of a file that is
    being compressed only the source is meant.
    """
    found: list[tuple[bytes, int, Path]] = []
    first = b""
    for modified_ns, path in rolled_files(log):
        if modified_ns <= passed.until_ns:
            continue
        head = head_of(path)
        if head is not None and (not head.size_bytes or passed.has(head)):
            continue
        # One that cannot be read stands where its time of change puts it.
        first = head.first if head and head.first else first
        if path.suffix != GZIP or not _is_copy(path, head):
            found.append((first, modified_ns, path))
    return [path for _, _, path in sorted(found)]


def files_of(log: Path, place: LogPlace) -> Iterator[Path]:
    """The files that may be the one of a place: by their heads, or if that was empty, by inode.

    A renamed file comes before a copy of it, and that before a compressed one.
    """
    paths = [log, *(path for _, path in rolled_files(log))]
    for path in sorted(paths, key=lambda path: (_inode(path) != place.inode, path.suffix == GZIP)):
        if _is_file_of(path, place):
            yield path


def _is_copy(compressed: Path, head: Head | None) -> bool:
    """Whether the file that is being compressed is still there, too."""
    source = compressed.with_suffix("")
    is_begun = head is not None and bool(head.first)
    return source.exists() and (not is_begun or head_of(source, head.size_bytes if head else 0) == head)


def _is_file_of(path: Path, place: LogPlace) -> bool:
    if not place.head_bytes:
        return _inode(path) == place.inode
    head = head_of(path, place.head_bytes)
    return head is not None and head[:2] == (place.head_bytes, place.head_sha256)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


logger = logging.getLogger(__name__)

Start = Literal["beginning", "end"]

READ_BYTES: Final = 256 * 1024
MAX_LINE_BYTES: Final = 20 * 1024 * 1024
"""The longest line that is kept whole: a fetch of 100 000 partitions has one."""

_READS_IN_A_LINE: Final = 128


@dataclass(slots=True)
class FollowerCounts:
    """What happened to the file.

    Attributes:
        rolled: Files that were read to their end and left for the next one.
        truncated: Files that became shorter than the place in them.
        too_long: Lines above `max_line_bytes`, handed out as a `LongLine`.
        lost: Places whose file was gone. Its lines after the place were not read.
        damaged: Compressed files that could not be read to their end.
    """

    rolled: int = 0
    truncated: int = 0
    too_long: int = 0
    lost: int = 0
    damaged: int = 0

    def __str__(self) -> str:
        return (
            f"log {self.rolled:,} times rolled, {self.truncated:,} truncated, {self.lost:,} lost, "
            f"{self.damaged:,} damaged, {self.too_long:,} lines too long"
        )


class LogFollower:
    """Hands out the lines of a log file in order.

    Args:
        path: The file that is written now. Rolled files are in its folder; `rolled_files` has their names.
            It need not exist yet.
        start: Where to begin without a place. A file that appears later is read from its beginning.
    """

    def __init__(
        self,
        path: Path,
        start: Start = "end",
        resume: LogPlace | None = None,
        read_bytes: int = READ_BYTES,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        self.path = path
        self._read_bytes = read_bytes
        self.counts = FollowerCounts()
        self._file: LogFile | None = None
        self._offset = 0
        self._open_line = OpenLine(max_line_bytes)
        self._passed = all_passed(path)
        if resume is not None:
            self._resume(resume)
        elif path.exists():
            self._open(path, _end_of_last_line(path) if start == "end" else 0)

    @property
    def place(self) -> LogPlace:
        """Where the next line starts: for a later reader, after all lines that were handed out."""
        head = self._file.head() if self._file else Head(0, "")
        return LogPlace(
            inode=self._file.inode if self._file else 0,
            offset_bytes=self._offset,
            head_bytes=head.size_bytes,
            head_sha256=head.sha256,
            passed_until_ns=self._passed.until_ns,
            passed=list(self._passed.passed),
        )

    def read(self) -> list[Line]:
        """The next lines without their ends, about `read_bytes` of them, or one that is longer. Does not wait.

        Returns:
            The lines; empty if there are none now, or if the next one is so long that it takes more than one call.
        """
        if self._file is None and not self._open_next():
            return []
        for _ in range(_READS_IN_A_LINE):
            file = self._file
            assert file is not None  # noqa: S101 - opened above
            chunk = self._chunk(file)
            if not chunk and self._moved_on(file):
                # It may have been written between the read above and the check of the folder, but not after that.
                chunk = b"" if file.is_compressed else self._chunk(file)
                if not chunk:
                    rest = self._leave(file)
                    return rest or (self.read() if self._file is not None else [])
            lines = self._lines(chunk) if chunk else []
            if lines or not chunk:
                return lines
        return []

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _resume(self, place: LogPlace) -> None:
        is_known = place.passed_until_ns is not None
        if is_known:
            self._passed = PassedFiles(place.passed_until_ns or 0, place.passed)
        if place.inode and self._go_to(place):
            if not is_known and self._file is not None and self._file.path != self.path:
                self._passed = PassedFiles(self._file.modified_ns)
            return
        if place.head_bytes:
            self.counts.lost += 1
            logger.warning(
                "the file of %s in which the last meter stopped is gone, with the lines after byte %s; continuing with "
                "the oldest file that is left",
                self.path,
                f"{place.offset_bytes:,}",
            )
        self._open_next()

    def _go_to(self, place: LogPlace) -> bool:
        """Open the file of a place there; False if it is gone. A renamed file is preferred to a copy of it."""
        for path in files_of(self.path, place):
            try:
                if self._open(path, place.offset_bytes):
                    return True
            except UNREADABLE as exc:
                logger.warning("%s cannot be read: %s", path, exc)
            except FileNotFoundError:
                continue
        return False

    def _open(self, path: Path, offset_bytes: int) -> bool:
        self.close()
        file = LogFile(path)
        if offset_bytes and not file.seek(offset_bytes):
            file.close()
            return False
        self._file, self._offset = file, offset_bytes
        self._open_line.take()
        return True

    def _open_next(self) -> bool:
        """Open the oldest file that was not read yet. Several may have been rolled during a long pause."""
        path = next(iter(unread(self.path, self._passed)), self.path)
        try:
            return self._open(path, 0)
        except FileNotFoundError:  # it was renamed or compressed a moment ago: the next read looks again
            return False

    def _chunk(self, file: LogFile) -> bytes:
        try:
            return file.read(self._read_bytes)
        except (OSError, *UNREADABLE) as exc:
            if not file.is_compressed:
                raise
            self.counts.damaged += 1
            logger.warning("%s cannot be read beyond byte %s: %s", file.path, f"{self._offset:,}", exc)
            return b""

    def _moved_on(self, file: LogFile) -> bool:
        # True: this file gets no more lines. A file that became shorter is read from its beginning.
        if file.is_compressed:
            return True
        try:
            if not file.is_at(self.path):
                return True
        except FileNotFoundError:
            return file.path != self.path
        if file.is_cut():
            self._after_cut(file)
        return False

    def _after_cut(self, file: LogFile) -> None:
        self.counts.truncated += 1
        place, head, modified_ns = self.place, file.head(), file.modified_ns
        if place.head_bytes and self._go_to(place):
            return
        self._passed.add(head, modified_ns)
        self._open_next()

    def _leave(self, file: LogFile) -> list[Line]:
        rest = [self._end_line()] if self._open_line.size_bytes else []
        self.counts.rolled += 1
        self._passed.add(file.any_head(), file.modified_ns)
        self.close()
        self._open_next()
        return rest

    def _lines(self, chunk: bytes) -> list[Line]:
        first, *others = chunk.split(b"\n")
        self._open_line.add(first)
        if not others:
            return []
        rest = others.pop()
        self._offset += self._open_line.size_bytes - len(first) + len(chunk) - len(rest)
        lines = [self._end_line()]
        if len(chunk) <= self._open_line.most_bytes:
            lines += others
        else:
            for line in others:
                self._open_line.add(line)
                lines.append(self._end_line())
        self._open_line.add(rest)
        return lines

    def _end_line(self) -> Line:
        line = self._open_line.take()
        self.counts.too_long += isinstance(line, LongLine)
        return line


def _end_of_last_line(path: Path) -> int:
    with path.open("rb") as file:
        start = file.seek(0, os.SEEK_END)
        while start:
            end, start = start, max(0, start - READ_BYTES)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
    return 0
