"""Follows a growing log file over rolling, truncation and restarts of the reader.

It does not know what the lines mean. One thread.

Guaranteed: each line is handed out at least once, if its file is in the folder and not compressed when the reader
gets to it. A reader that resumes at a saved point gets the lines after that point and none before it. Not
guaranteed: lines of a file that was truncated, deleted or compressed before they were read are lost. A file that is
truncated and written beyond the old position between two reads is not noticed.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple

from pipeline.meter.rolled_files import log_files

Start = Literal["beginning", "end"]

READ_BYTES: Final = 256 * 1024
MAX_LINE_BYTES: Final = 1024 * 1024
_HEAD_BYTES: Final = 256


class LogPosition(NamedTuple):
    """A place between two lines. Ordered: later in the log is greater.

    Attributes:
        file_number: Counts the files (and truncations) that this reader has gone through.
        offset_bytes: Of the place in that file.
    """

    file_number: int
    offset_bytes: int


class LogLine(NamedTuple):
    """One line without its line end, and the place where it starts."""

    start: LogPosition
    text: str


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A place in a file that another process can find again, even if the file was renamed.

    Attributes:
        inode: Of the file.
        offset_bytes: Of the first line that was not dealt with yet.
        head_bytes: How many bytes from the start of the file `head_sha256` covers. The file system uses the inode
            number of a deleted file again, but the new file begins with other bytes.
        head_sha256: Hex digest of these bytes.
    """

    inode: int
    offset_bytes: int
    head_bytes: int
    head_sha256: str

    def matches(self, path: Path) -> bool:
        """Whether `path` is the file of this point and is still long enough to contain it."""
        try:
            status = path.stat()
            return (
                status.st_ino == self.inode
                and status.st_size >= self.offset_bytes
                and _digest(path, self.head_bytes) == self.head_sha256
            )
        except OSError:
            return False


@dataclass(slots=True)
class FollowerCounts:
    """What happened to the file.

    Attributes:
        rolled: Files that were read to their end and left for the next one.
        truncated: Files that became shorter than the position in them.
        too_long: Lines above `max_line_bytes`; they were skipped.
        lost: Resume points whose file was gone. Its lines after the point were not read.
    """

    rolled: int = 0
    truncated: int = 0
    too_long: int = 0
    lost: int = 0

    def __str__(self) -> str:
        return (
            f"log {self.rolled:,} times rolled, {self.truncated:,} truncated, {self.lost:,} lost, "
            f"{self.too_long:,} lines too long"
        )


class LogFollower:
    """Hands out the lines of a log file in order.

    Args:
        path: The file that is written now. Rolled files lie beside it; `rolled_files` says which names they have.
            It need not exist yet.
        start: Where to begin without a resume point. A file that appears later is read from its beginning.
        resume: Where an earlier reader stopped.
        read_bytes: The most bytes that one `read` takes.
        max_line_bytes: Longer lines are skipped.
    """

    def __init__(
        self,
        path: Path,
        start: Start = "end",
        resume: ResumePoint | None = None,
        read_bytes: int = READ_BYTES,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        self.path = path
        self._read_bytes = read_bytes
        self._max_line_bytes = max_line_bytes
        self.counts = FollowerCounts()
        self._file: BinaryIO | None = None
        self._file_path = path
        self._number = 0
        self._offset = 0
        self._partial = b""
        self._skipping = False
        self._files: dict[int, tuple[int, Path]] = {}
        if resume is not None:
            self._resume(resume)
        elif path.exists():
            self._open(path, _end_of_last_line(path) if start == "end" else 0)

    @property
    def position(self) -> LogPosition:
        """Where the next line starts."""
        return LogPosition(self._number, self._offset)

    def read(self) -> list[LogLine]:
        """The next lines, at most `read_bytes` bytes of them; empty if there are none now. Does not wait."""
        if self._file is None and not self._open_next(after_ns=-1):
            return []
        file = self._file
        assert file is not None  # noqa: S101 - opened above
        chunk = file.read(self._read_bytes)
        if not chunk and self._moved_on(file):
            # It may have been written between the read above and the check of the folder, but not after that.
            chunk = file.read(self._read_bytes)
            if not chunk:
                self._leave(file)
                return self.read() if self._file is not None else []
        return list(self._lines(chunk))

    def resume_point(self, position: LogPosition) -> ResumePoint | None:
        """What to save so that a later reader goes on at `position`; None if no file was opened yet.

        Positions must not go back from one call to the next, because files before `position` are forgotten.
        """
        for number in [number for number in self._files if number < position.file_number]:
            del self._files[number]
        if position.file_number not in self._files:
            return None
        inode, path = self._files[position.file_number]
        head_bytes = min(_HEAD_BYTES, position.offset_bytes)
        found = next((other for _, other in log_files(self.path) if _inode(other) == inode), path)
        try:
            return ResumePoint(inode, position.offset_bytes, head_bytes, _digest(found, head_bytes))
        except OSError:
            return None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _resume(self, resume: ResumePoint) -> None:
        for path in [self.path, *(path for _, path in log_files(self.path))]:
            if resume.matches(path):
                self._open(path, resume.offset_bytes)
                return
        self.counts.lost += 1
        if self.path.exists():
            self._open(self.path, 0)

    def _open(self, path: Path, offset_bytes: int) -> None:
        self._file = path.open("rb")
        self._file.seek(offset_bytes)
        self._file_path = path
        self._number += 1
        self._offset = offset_bytes
        self._partial, self._skipping = b"", False
        self._files[self._number] = (os.fstat(self._file.fileno()).st_ino, path)

    def _open_next(self, after_ns: int) -> bool:
        # Several files may have been rolled during a long pause. The oldest of those that are newer comes next.
        if after_ns >= 0:
            for modified_ns, path in log_files(self.path):
                if path != self.path and modified_ns > after_ns:
                    self._open(path, 0)
                    return True
        if self.path.exists():
            self._open(self.path, 0)
        return self._file is not None

    def _moved_on(self, file: BinaryIO) -> bool:
        # True: this file gets no more lines. A file that became shorter is read again from its beginning.
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(file.fileno())
        if (now.st_ino, now.st_dev) != (mine.st_ino, mine.st_dev):
            return True
        if mine.st_size < file.tell():
            self.counts.truncated += 1
            self.close()
            self._open(self.path, 0)
        return False

    def _leave(self, file: BinaryIO) -> None:
        modified_ns = os.fstat(file.fileno()).st_mtime_ns
        self.counts.rolled += 1
        self.close()
        self._open_next(modified_ns)

    def _lines(self, chunk: bytes) -> Iterator[LogLine]:
        *whole, rest = (self._partial + chunk).split(b"\n")
        for raw in whole:
            start = self.position
            self._offset += len(raw) + 1
            if self._skipping:
                self._skipping = False
            else:
                yield LogLine(start, raw.decode("utf-8", "replace").rstrip("\r"))
        self._partial = rest
        if len(rest) > self._max_line_bytes:
            self.counts.too_long += not self._skipping
            self._skipping = True
            self._offset += len(rest)
            self._partial = b""


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _digest(path: Path, head_bytes: int) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(head_bytes)).hexdigest()


def _end_of_last_line(path: Path) -> int:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        tail_start = max(0, size - MAX_LINE_BYTES)
        file.seek(tail_start)
        return tail_start + file.read().rfind(b"\n") + 1 if size else 0
