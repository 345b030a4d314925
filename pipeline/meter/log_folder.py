"""The files of a log in its folder: which were read, which were not, and which is the one of a place."""

from collections.abc import Iterator
from pathlib import Path

from pipeline.meter.log_file import Head, head_of
from pipeline.meter.log_place import PASSED_FILES, LogPlace, PassedFiles
from pipeline.meter.rolled_files import GZIP, rolled_files


def all_passed(log: Path) -> PassedFiles:
    """All that lies beside a log now, also while it is being compressed."""
    files = rolled_files(log)
    passed = PassedFiles(files[-1].modified_ns if files else 0)
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
        # One that can not be read stands where its time of change puts it.
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
    return head is not None and head.is_of(place.head_bytes, place.head_sha256)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
