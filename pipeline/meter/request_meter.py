"""The meter on a request log: read lines, make events, store them together with the place that they reach to.

Each event is on the topic exactly once for a `read_committed` reader, whenever the meter is killed: events and place
are stored in one transaction, and a meter that starts continues at the place. A line that is not a request, or that
cannot be read, is skipped.

A memory pool bounds what was read and is not stored yet: while the broker is away, nothing more is read.
"""

import json
import logging
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from pydantic import ValidationError

from pipeline.clock import Clock
from pipeline.errors import Refused
from pipeline.meter.log_follower import READ_BYTES, FollowerCounts, LogFollower, LogPlace
from pipeline.meter.long_line import Line
from pipeline.meter.request_log import LineCounts, MalformedLine, RequestLogParser
from pipeline.meter.usage_messages import UsageBatch
from pipeline.meter.usage_topic import DeliveryCounts, UsagePublisher, counters, delivery_metrics
from purgatory.memory_pool import Allocation, MemoryPool
from purgatory.timer import SystemMonotonicClock

logger = logging.getLogger(__name__)

POOL_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of log lines that were read and are not stored yet."""

LINGER_MS: Final = 100
LINGER_BEHIND_MS: Final = 1_000
"""How long an event waits, at most, for others to share its transaction: at the end of the log, and far from it."""

MARK_EVERY_MS: Final = 10_000
"""How often the place is stored if no line makes an event."""

KEEP_EVERY_MS: Final = 3_600_000
"""How often it is stored if nothing is logged: a cluster forgets offsets without commits (after 7 days by default)."""

_SHOWN_BYTES: Final = 480

FLUSH_WITHIN_MS: Final = 10_000
COMPLAIN_EVERY_MS: Final = 10_000


class RequestMeter:
    """Runs the steps of the meter. One thread.

    Args:
        wait: Sleeps for the given seconds, or less when the meter is to stop.
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
        self._batch = UsageBatch(publisher.partition_count)
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
            begun: Called once, as soon as the place at which this meter begins is stored.

        Returns:
            Whether all events were stored within `FLUSH_WITHIN_MS` after that.

        Raises:
            Conflict: A second meter of the same broker has taken over.
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
                error,
                line[:_SHOWN_BYTES].decode("utf-8", "replace"),
            )
            self._complained_ms, self._unreported = now_ms, 0


# The state file of an earlier release: its place is taken over once, then the file is renamed.


def read_state(path: Path) -> LogPlace | None:
    """The place at which an earlier meter stopped; None if there is no state file.

    Raises:
        Refused: The file is not a state that a meter has written, or it cannot be read. To begin at the end
            of the log instead would leave out usage without a word.
    """
    try:
        stored = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise _state_damaged(path, exc.strerror or type(exc).__name__) from exc
    except ValueError as exc:
        reason = f"Invalid JSON: {exc}"
        raise _state_damaged(path, reason) from exc
    if not isinstance(stored, dict):
        reason = "it is not a JSON object"
        raise _state_damaged(path, reason)
    if stored.pop("version", None) != 1:
        reason = "its version is not 1"
        raise _state_damaged(path, reason)
    try:
        return LogPlace.model_validate(stored)
    except ValidationError as exc:
        first = exc.errors()[0]
        raise _state_damaged(path, ": ".join([*map(str, first["loc"]), first["msg"]])) from exc


def _state_damaged(path: Path, reason: str) -> Refused:
    return Refused(
        f"cannot read the meter's state {path}: {reason}",
        f"rm {shlex.quote(str(path))}, then start with --from-beginning, which reports the whole log again, or "
        "without, which leaves out what was logged until now",
    )


def retire_state(path: Path) -> None:
    """Rename a state file whose place is on the cluster now, and log it. Nothing happens without one."""
    if not path.exists():
        return
    old = path.with_name(f"{path.name}.moved")
    try:
        path.rename(old)
    except OSError as exc:
        logger.warning("%s is not used any more; it cannot be renamed: %s", path, exc)
        return
    logger.info("the place in the log is on the cluster now; the unused state file is now %s", old)


# Metrics, read from the counts at each scrape.


class MeterGauges(NamedTuple):
    """Values of a running meter, for any thread."""

    lines: LineCounts
    delivery: DeliveryCounts
    log: FollowerCounts
    unstored_events: Callable[[], int]
    held_bytes: Callable[[], int]


def meter_metrics(meter: MeterGauges, broker_id: str) -> Iterable[Metric]:
    """The counts of the meter of a broker, now."""
    lines, log = meter.lines, meter.log
    of_lines = CounterMetricFamily(
        "kquota_meter_lines", "Lines of the request log, by what they were.", labels=["broker_id", "what"]
    )
    for what in ("events", "own", "malformed", "other"):
        of_lines.add_metric([broker_id, what], getattr(lines, what))
    yield of_lines
    files = CounterMetricFamily(
        "kquota_meter_log_files", "What happened to files of the log.", labels=["broker_id", "what"]
    )
    for what in ("rolled", "truncated", "lost", "damaged"):
        files.add_metric([broker_id, what], getattr(log, what))
    yield files
    yield from counters(
        broker_id,
        (
            ("unsized_events", "Events without bytes although the request moved some.", lines.unsized),
            ("long_lines", "Lines that were too long to be kept whole.", log.too_long),
            ("estimated_events", "Events with the most bytes that their line allows.", lines.estimated),
            ("uncharged_bytes", "Length of the malformed lines: no client is charged.", lines.uncharged_bytes),
        ),
    )
    yield from delivery_metrics(meter.delivery, broker_id)
    for name, documentation, value in (
        ("unstored_events", "Events that are read and not yet stored.", meter.unstored_events()),
        ("held_bytes", "Bytes of lines that are read and not yet stored.", meter.held_bytes()),
    ):
        gauge = GaugeMetricFamily(f"kquota_meter_{name}", documentation, labels=["broker_id"])
        gauge.add_metric([broker_id], value)
        yield gauge
