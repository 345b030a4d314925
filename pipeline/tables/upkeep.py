"""The upkeep of the files of the job's tables, by their names: what the job needs of it, and how delta-rs does it."""

from typing import Final, Protocol

from pipeline.tables.address import table_uri
from pipeline.tables.maintenance import clean, compact, trim
from pipeline.tables.reader import DeltaRsReader
from pipeline.tables.reading.column_range import newest_value
from pipeline.tables.sorted_days import sort_day

SORTED: Final = ("usage_by_minute", "throttle_by_minute")
"""Tables of which each day becomes one file that is sorted by client."""


class TableUpkeep(Protocol):
    """Upkeep of the tables under a root. Each step can be repeated, and interrupted at any point.

    Attributes:
        rounds_per_cleaning: Files are cleaned in one of so many rounds.
        cleaning_round: Which one, counted from 0.
    """

    rounds_per_cleaning: int
    cleaning_round: int

    def newest_value(self, name: str, column: str) -> int | None:
        """The largest value of an INT64 column of a table; None for a table without rows."""
        ...

    def newest_evaluation_ms(self, name: str) -> int | None:
        """When the newest rows of a table were evaluated, in their time epoch; None for a table without rows."""
        ...

    def trim(self, name: str, column: str, before_ms: int) -> int:
        """Delete the rows of a table whose time is before an instant; returns how many."""
        ...

    def merge(self, name: str) -> bool:
        """Merge small files of a table if there are many; returns whether it did."""
        ...

    def clean(self, name: str) -> int:
        """Delete replaced files after the time in the table's properties; returns how many, 0 if that is not told."""
        ...


class DeltaRsUpkeep:
    """The `TableUpkeep` of tables at an address.

    Args:
        root: Root of the tables.
    """

    # Listing all files costs more than the rest of a round. Between two cleanings the log may grow by half.
    rounds_per_cleaning = 5
    cleaning_round = 0

    def __init__(self, root: str) -> None:
        self._root = root

    def newest_value(self, name: str, column: str) -> int | None:
        """See `TableUpkeep`; so all others."""
        return newest_value(table_uri(self._root, name), column)

    def newest_evaluation_ms(self, name: str) -> int | None:  # noqa: D102
        newest = DeltaRsReader(table_uri(self._root, name)).newest_instant()
        return None if newest is None else newest.evaluated_at_ms

    def trim(self, name: str, column: str, before_ms: int) -> int:  # noqa: D102
        return trim(table_uri(self._root, name), column, before_ms)

    def merge(self, name: str) -> bool:  # noqa: D102
        uri = table_uri(self._root, name)
        return sort_day(uri) is not None if name in SORTED else compact(uri)

    def clean(self, name: str) -> int:  # noqa: D102
        return clean(table_uri(self._root, name))
