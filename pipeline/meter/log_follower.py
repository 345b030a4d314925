"""Follows a growing log file over rolling, compression, truncation and restarts of the reader.

It does not know what the lines mean; of one that is too long to be kept, `LongLine` keeps what counts. One thread.

Guaranteed: each line is handed out once, if its file is in the folder when the reader gets to it, as it was written or
compressed with gzip. A reader that resumes at a saved place gets the lines after it and none before it. Not guaranteed:
lines of a file that was deleted before they were read are lost, and so are those of a file that was truncated, unless a
copy was rolled before. A file that is truncated and written beyond the old place between two reads is not noticed. The
last line of a file that is left without a line end is handed out as it is.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pipeline.meter.log_file import UNREADABLE, Head, LogFile
from pipeline.meter.log_folder import all_passed, files_of, unread
from pipeline.meter.log_place import LogPlace, PassedFiles
from pipeline.meter.long_line import Line, LongLine, OpenLine

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
        path: The file that is written now. Rolled files lie beside it; `rolled_files` says which names they have.
            It need not exist yet.
        start: Where to begin without a place. A file that appears later is read from its beginning.
        resume: Where an earlier reader stopped.
        read_bytes: The most bytes that are read at once.
        max_line_bytes: Longer lines are not kept whole.
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
            passed=self._passed.passed,
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
                "the file of %s in which the last meter stopped is gone, with the lines after byte %s; going on with "
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
                logger.warning("%s can not be read: %s", path, exc)
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
            logger.warning("%s can not be read beyond byte %s: %s", file.path, f"{self._offset:,}", exc)
            return b""

    def _moved_on(self, file: LogFile) -> bool:
        # True: this file gets no more lines. A file that became shorter is read again from its beginning.
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
