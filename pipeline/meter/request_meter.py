"""The meter on a request log: read lines, make events, store them together with the place that they reach to.

Each event is on the topic exactly once for a `read_committed` reader, whenever the meter is killed: events and place
are stored in one transaction, and a meter that starts goes on at the place. A line that is no request, or that can not
be read, is passed over.

A memory pool bounds what was read and is not stored yet: while the broker is away, nothing more is read.
"""

import logging
from collections.abc import Callable
from typing import Final

from pipeline.clock import Clock
from pipeline.meter.log_follower import READ_BYTES, LogFollower
from pipeline.meter.log_place import LogPlace
from pipeline.meter.long_line import Line
from pipeline.meter.request_log import MalformedLine, RequestLogParser
from pipeline.meter.usage_batch import UsageBatch
from pipeline.meter.usage_publisher import UsagePublisher
from purgatory.memory_pool import Allocation, MemoryPool
from purgatory.timer import SystemMonotonicClock

logger = logging.getLogger(__name__)

POOL_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of log lines that were read and are not stored yet."""

LINGER_MS: Final = 100
LINGER_BEHIND_MS: Final = 1_000
"""How long an event waits, at most, for others to share its transaction: at the end of the log, and far from it."""

MARK_EVERY_MS: Final = 10_000
"""How often the place is stored if there are lines and none of them makes an event."""

KEEP_EVERY_MS: Final = 3_600_000
"""How often it is stored if nothing is logged: a cluster forgets offsets that nobody commits (7 days by default)."""

_SHOWN_BYTES: Final = 480

FLUSH_WITHIN_MS: Final = 10_000
COMPLAIN_EVERY_MS: Final = 10_000


class RequestMeter:
    """Runs the steps of the meter. One thread.

    Args:
        follower: The log.
        parser: Makes the events.
        publisher: Stores them; it has taken over.
        clock: Its steady time is used.
        wait: Sleeps for the given seconds, or less when the meter is asked to stop.
        pool_bytes: See `POOL_BYTES`; the lines of one read at least.
    """

    def __init__(
        self,
        follower: LogFollower,
        parser: RequestLogParser,
        publisher: UsagePublisher,
        clock: Clock,
        wait: Callable[[float], object],
        pool_bytes: int = POOL_BYTES,
    ) -> None:
        self._follower = follower
        self._parser = parser
        self._publisher = publisher
        self._clock = clock
        self._wait = wait
        self._pool = MemoryPool(pool_bytes, pool_bytes, SystemMonotonicClock())
        self._held: list[Allocation] = []
        self._batch = UsageBatch(publisher.partition_count, parser.codec)
        self._place: LogPlace | None = None
        self._begun_ms: int | None = None
        self._stored_ms = self._now_ms()
        self._is_behind = False
        self._is_tried = False
        self._complained_ms: int | None = None
        self._unreported = 0

    def run(self, stopping: Callable[[], bool], begun: Callable[[], object] = lambda: None) -> bool:
        """Run until `stopping()` is true, then store the rest.

        Args:
            stopping: Asked at each step.
            begun: Called once, as soon as the place at which this meter begins is stored.

        Returns:
            Whether all events were stored within `FLUSH_WITHIN_MS` after that.

        Raises:
            MeterFenced: A second meter of the same broker has taken over.
        """
        try:
            # A meter that is killed before its first event begins here again.
            while not self._publish() and not stopping():
                self._wait(0.05)
            if not self._is_tried:
                begun()
            while not stopping():
                if not self.step():
                    self._wait(0.02)
            give_up_ms = self._now_ms() + FLUSH_WITHIN_MS
            while self._has_news and not self._publish() and self._now_ms() < give_up_ms:
                self._wait(0.05)
        finally:
            self._follower.close()
            self._publisher.close()
        return not self._has_news

    def step(self) -> bool:
        """Read once, and store what is due; True if there was something to read."""
        lines = self._read()
        if lines:
            self._batch.add(self._parser.elements(lines, self._report))
        if self._is_due():
            self._publish()
        return bool(lines)

    @property
    def unstored_events(self) -> int:
        """Events that are read and not known to be stored."""
        return len(self._batch)

    @property
    def held_bytes(self) -> int:
        """Bytes of lines that are read and not known to be stored."""
        return self._pool.used_bytes

    @property
    def _has_news(self) -> bool:
        return self._is_tried or self._begun_ms is not None

    def _read(self) -> list[Line]:
        # A batch that was tried must stay as it is, until it is known whether it was stored.
        if self._is_tried:
            return []
        lines = self._follower.read()
        size_bytes = sum(map(len, lines)) + len(lines)
        self._is_behind = size_bytes >= READ_BYTES // 2
        if lines:
            allocation = self._pool.try_allocate(min(size_bytes, self._pool.max_allocation_bytes))
            self._held += [allocation] if allocation else []
            self._begun_ms = self._now_ms() if self._begun_ms is None else self._begun_ms
        return lines

    def _is_due(self) -> bool:
        if self._is_tried or self._pool.is_out_of_memory:
            return True  # and nothing more is read before it is stored
        if self._begun_ms is None:
            return self._now_ms() - self._stored_ms >= KEEP_EVERY_MS
        waited_ms = self._now_ms() - self._begun_ms
        if len(self._batch):
            return waited_ms >= (LINGER_BEHIND_MS if self._is_behind else LINGER_MS)
        return waited_ms >= MARK_EVERY_MS

    def _publish(self) -> bool:
        """Store what was read, and its place; True if that is done."""
        if not self._is_tried:
            self._place = self._follower.place
        assert self._place is not None  # noqa: S101 - set above, now or when it was first tried
        self._is_tried = True
        messages = self._batch.messages()
        if not self._publisher.publish(messages, len(self._batch), self._place, self._now_ms()):
            return False
        self._is_tried = False
        self._batch.clear()
        for allocation in self._held:
            self._pool.release(allocation)
        self._held.clear()
        self._begun_ms, self._stored_ms = None, self._now_ms()
        return True

    def _now_ms(self) -> int:
        return self._clock.now().steady_ms

    def _report(self, error: MalformedLine, line: bytes) -> None:
        self._unreported += 1
        now_ms = self._now_ms()
        if self._complained_ms is None or now_ms - self._complained_ms >= COMPLAIN_EVERY_MS:
            logger.warning(
                "%s of %s skipped: %s: %.120s",
                f"{self._unreported:,} malformed line{'s' if self._unreported > 1 else ''}",
                self._follower.path,
                error.reason,
                line[:_SHOWN_BYTES].decode("utf-8", "replace"),
            )
            self._complained_ms, self._unreported = now_ms, 0
