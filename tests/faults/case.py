"""What the checks of the records share."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

from tests.faults.books import Books
from tests.faults.evidence import Row
from tests.faults.held import Client, Held
from tests.faults.rules import Rules
from tests.faults.verdict import Verdict
from tests.quota.model import Sensor


@dataclass
class Case:
    """One verdict in the making.

    Attributes:
        books: The verifier's own.
        rules: Of the job.
        verdict: Takes what is found.
        starts: When a driver took over the running throttles, by its first clock; None: not known.
        moved: Of each start, how far the driver's wall clock was from its first one, and the first `publish_seq`
            after it.
        held: The clients that are held, as the records tell.
        newest_version: The newest quota version that a batch or a record was based on.
        newest_written_ms: When the last record was written.
        emptied: The buckets that the snapshot after the present batch made new, with what was in them. A look that is
            based on the batch may have been taken before the snapshot.
    """

    books: Books
    rules: Rules
    verdict: Verdict
    starts: Sequence[int] | None = None
    moved: Sequence[tuple[int, int]] = ()
    held: dict[Client, Held] = field(default_factory=dict)
    newest_version: int = -1
    newest_written_ms: int = 0
    emptied: Mapping[Sensor, float] = field(default_factory=dict)

    @contextmanager
    def before_snapshot(self) -> Iterator[None]:
        """The buckets as they were before the snapshot, for as long as the block."""
        for sensor, tokens in self.emptied.items():
            sensor.tokens = tokens
        try:
            yield
        finally:
            for sensor in self.emptied:
                sensor.tokens = None

    def take_up(self, held: Held, until_ms: float, before_seq: float = inf) -> None:
        """Take account of the drivers that took up a throttle up to this time, and before a record was written."""
        for number, (start_ms, (moved_ms, first_seq)) in enumerate(zip(self.starts or (), self.moved, strict=False)):
            if number >= held.starts_seen and start_ms <= until_ms and first_seq <= before_seq:
                held.starts_seen = number + 1
                held.take_up(start_ms, moved_ms, first_seq)

    def end_of(self, held: Held, now_ms: int) -> int:
        """The end that a new throttle is compared with: of an overdue one, when a driver took it up."""
        starts = (start_ms for start_ms in self.starts or () if start_ms <= now_ms)
        return max([held.end_ms, *starts])

    def is_touched(self, held: Held, version: int) -> bool:
        """Whether another bound or level holds for a client than its last record was based on."""
        quota_type, before = held.row["quota_type"], held.row["quota_version"]
        return self.books.standing(held.row, quota_type, before) != self.books.standing(held.row, quota_type, version)

    def bound_fell(self, row: Row, version: int) -> bool:
        """Whether a client's bound of the row's quota type is lower under a version than under the row's."""
        before, _ = self.books.standing(row, row["quota_type"], row["quota_version"])
        after, _ = self.books.standing(row, row["quota_type"], version)
        return before is not None and after is not None and after < before
