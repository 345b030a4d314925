"""What a job asks of an object store, counted in the server's own log, and what Amazon charges for it."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_OPERATION: Final = re.compile(r" s3_(\w+) (\S+) ")
_DAY_SECONDS: Final = 86_400
_MONTH_DAYS: Final = 30
# List prices of S3 Standard in us-east-1, US dollars for 1000 requests; a DELETE costs nothing.
PUT_PRICE: Final = 0.005
GET_PRICE: Final = 0.0004
_PUTS: Final = ("PutObject", "CopyObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")
_LISTS: Final = ("ListObjectsV2", "ListObjects")
_GETS: Final = ("GetObject", "HeadObject")


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of a span of time, by their price.

    Attributes:
        puts: Writes.
        lists: Listings, which cost as much as writes.
        gets: Reads.
        refused: Writes that met an object that was there already (412).
        seconds: The span.
    """

    puts: int
    lists: int
    gets: int
    refused: int
    seconds: float

    @classmethod
    def of(cls, lines: list[str], seconds: float) -> Self:
        """Count the lines of an access log."""
        operations: Counter[str] = Counter()
        refused = 0
        for line in lines:
            found = _OPERATION.search(line)
            operations[found[1] if found else ""] += 1
            refused += " 412 PreconditionFailed " in line
        puts, lists, gets = (sum(operations[name] for name in names) for names in (_PUTS, _LISTS, _GETS))
        return cls(puts, lists, gets, refused, seconds)

    def a_day(self, count: int) -> int:
        """So many of the span, in a day that is like it."""
        return round(count / self.seconds * _DAY_SECONDS)

    @property
    def dollars_a_month(self) -> float:
        """What Amazon charges for the requests of 30 days."""
        put_price = self.a_day(self.puts + self.lists) * PUT_PRICE
        return (put_price + self.a_day(self.gets) * GET_PRICE) / 1_000 * _MONTH_DAYS


class AccessLog:
    """The lines that a server's log gets while something is measured."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size

    def new_lines(self) -> list[str]:
        """Since this object was made."""
        with self._path.open(encoding="utf-8", errors="replace") as log:
            log.seek(self._offset)
            return log.read().splitlines()
