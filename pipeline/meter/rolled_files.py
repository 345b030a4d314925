"""Which files a log was rolled into, by their names.

The log `kafka-request.log` is rolled into `kafka-request.log.1`, `kafka-request.log.2026-11-21-07` and the like: the
whole name, one of `. - _`, and anything. Or into `kafka-request-2026-11-21.log` and the like: a date, and further
digits, before the extension. Another number there does not count, because `kafka-request-1.log` and
`kafka-request-10.log` are the logs of two brokers. Each of them may be compressed: then `.gz` follows. Files that are
compressed in another way do not count.
"""

import re
from pathlib import Path
from typing import Final, NamedTuple

GZIP: Final = ".gz"
_COMPRESSED: Final = frozenset({".zip", ".bz2", ".xz", ".zst", ".Z", ".deflate", ".pack200"})
_YEAR_FIRST: Final = r"(19|20)\d\d[._-]?(0[1-9]|1[0-2])[._-]?(0[1-9]|[12]\d|3[01])"
_YEAR_LAST: Final = r"[0-3]\d[._-][0-3]\d[._-](19|20)\d\d"
_DATED: Final = rf"[._-]({_YEAR_FIRST}|{_YEAR_LAST})[\dT._-]*"


class RolledFile(NamedTuple):
    """A file that was rolled from a log.

    Attributes:
        modified_ns: Time of its last change; for a compressed one that is when it was compressed.
        path: Where it is.
    """

    modified_ns: int
    path: Path


def rolled_files(log: Path) -> list[RolledFile]:
    """The files rolled from a log, oldest first, without the log itself. Empty if the folder cannot be read."""
    whole, stem, extension = map(re.escape, (log.name, log.stem, log.suffix))
    is_rolled = re.compile(rf"{whole}[._-].+|{stem}{_DATED}{extension}(\{GZIP})?", re.DOTALL).fullmatch
    try:
        names = [path for path in log.parent.iterdir() if path.suffix not in _COMPRESSED and is_rolled(path.name)]
    except OSError:
        return []
    return sorted(
        RolledFile(modified_ns, path)
        for path in names
        if path.name != f"{log.name}{GZIP}" and (modified_ns := _modified_ns(path)) is not None
    )


def _modified_ns(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns if path.is_file() else None
    except OSError:  # it was deleted a moment ago
        return None
