"""A range in parts, for charts over time."""

from dataclasses import dataclass
from typing import Self

from pipeline.reports.periods import MINUTE_MS
from pipeline.reports.plots import PARTS


@dataclass(frozen=True, slots=True)
class Parts:
    """A range, divided into parts of whole minutes.

    Attributes:
        start_ms: Begin of the range, inclusive.
        part_ms: Length of each part; the last one may be shorter.
        end_ms: End of the range, exclusive.
    """

    start_ms: int
    part_ms: int
    end_ms: int

    @classmethod
    def of(cls, span_ms: tuple[int, int]) -> Self:
        """At most `PARTS` parts."""
        start_ms, end_ms = span_ms
        minutes = -(-(end_ms - start_ms) // MINUTE_MS)
        return cls(start_ms, -(-minutes // PARTS) * MINUTE_MS, end_ms)

    @property
    def lengths_ms(self) -> list[int]:
        """How long each part is."""
        return [min(self.part_ms, self.end_ms - at_ms) for at_ms in range(self.start_ms, self.end_ms, self.part_ms)]
