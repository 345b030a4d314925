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
        ended: When the last throttle of the others ended, or would have.
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
    ended: dict[Client, int] = field(default_factory=dict)
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

    def may_begin_soon(self, client: Client, at_ms: int) -> bool:
        """Whether a throttle of this client that begins then may count as one soon after the end of the one before."""
        ended_ms = self.ended.get(client)
        return ended_ms is not None and at_ms - ended_ms < 3 * self.rules.min_hold_ms + self.rules.clock_slack_ms

    def begins_soon(self, client: Client, at_ms: int) -> bool:
        """Whether it must: a driver that took over since then does not know."""
        ended_ms, slack_ms = self.ended.get(client), self.rules.clock_slack_ms
        is_known = (
            ended_ms is not None
            and self.starts is not None
            and not any(ended_ms - slack_ms <= start_ms <= at_ms + slack_ms for start_ms in self.starts)
        )
        return is_known and ended_ms is not None and at_ms - ended_ms < 3 * self.rules.min_hold_ms - slack_ms

    def slices_ms(self, decision: Row, owed: Mapping[str, Row]) -> tuple[int, int]:
        """The shortest and the longest slice that a decision may ask for: by X capped and by what is owed."""
        quota_type = decision["quota_type"]
        capped_ms, owes_ms = int(decision["throttle_time_ms"]), int(owed[quota_type]["owed_ms"])
        slices_ms = self.cut_ms(quota_type, int(decision["window_ms"]), max(owes_ms, capped_ms))
        return max(slices_ms[0], capped_ms), max(slices_ms[1], capped_ms)

    def cut_ms(self, quota_type: str, window_ms: int, owes_ms: int) -> tuple[int, int]:
        """What is owed, at most the cap, which is not below three leads: by the shortest lead and by the longest."""
        cap_ms = self.books.cap_ms(quota_type, window_ms)
        if cap_ms is None:
            return owes_ms, owes_ms
        most_lead_ms = self.rules.most_lead_ms
        least_ms = min(owes_ms, max(cap_ms, 3 * self.rules.least_lead_ms))
        return least_ms, owes_ms if most_lead_ms is None else min(owes_ms, max(cap_ms, 3 * most_lead_ms))

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
