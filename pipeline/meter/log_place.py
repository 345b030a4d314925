"""A place in a log that another process finds again, even if the file was renamed or compressed meanwhile."""

from collections import deque
from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, StringConstraints

from pipeline.meter.log_file import HEAD_BYTES, Head

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
        passed: Others, as in `LogPlace`.
    """

    def __init__(self, until_ns: int = 0, passed: Iterable[tuple[str, int]] = ()) -> None:
        self.until_ns = until_ns
        self._passed = deque(passed)

    @property
    def passed(self) -> list[tuple[str, int]]:
        """As in `LogPlace`."""
        return list(self._passed)

    def add(self, head: Head, modified_ns: int) -> None:
        """A file was dealt with. One that was empty has nothing to know it by, and nothing to lose."""
        if not head.size_bytes:
            return
        self._passed.append((head.sha256[:_SHORT_DIGITS], modified_ns))
        if len(self._passed) > PASSED_FILES:
            self._passed.popleft()
            younger = list(self._passed)[PASSED_FILES // 2 :]
            self.until_ns = max(self.until_ns, min(modified_ns for _, modified_ns in younger))

    def has(self, head: Head) -> bool:
        """Whether a file of this head is among those that are known by it."""
        return any(head.sha256.startswith(digits) for digits, _ in self._passed)
