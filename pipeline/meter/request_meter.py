"""The meter on a request log: read lines, make events, send them, remember how far they are stored.

Each event reaches the topic at least once: the remembered place is the start of the first line whose event is not
known to be stored. A restart after a clean stop repeats nothing and misses nothing. A restart after a kill repeats
what was stored since the state was last written, about one second of events. Kafka's own time-outs can repeat a
message, too.

If the state file can not be written while the meter runs, for example because the disk is full, the meter goes on and
says so: usage that is not reported would be worse than usage that is reported again after a restart. It does not start
that way: each restart would report the same usage again.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pipeline.clock import Clock
from pipeline.meter.errors import MeterStateNotWritten
from pipeline.meter.log_follower import LogFollower, ResumePoint
from pipeline.meter.meter_state import write_state
from pipeline.meter.request_log import MalformedLine, RequestLogParser
from pipeline.meter.usage_producer import UsageProducer

logger = logging.getLogger(__name__)

SAVE_EVERY_MS: Final = 1_000
FLUSH_WITHIN_MS: Final = 10_000
COMPLAIN_EVERY_MS: Final = 10_000


class RequestMeter:
    """Runs the steps of the meter. One thread.

    Args:
        follower: The log.
        parser: Makes the events.
        producer: Stores them.
        state_path: The file that remembers the place in the log; None: the place is not remembered.
        clock: Its steady time is used.
        wait: Sleeps for the given seconds, or less when the meter is asked to stop.
    """

    def __init__(
        self,
        follower: LogFollower,
        parser: RequestLogParser,
        producer: UsageProducer,
        state_path: Path | None,
        clock: Clock,
        wait: Callable[[float], object],
    ) -> None:
        self._follower = follower
        self._parser = parser
        self._producer = producer
        self._state_path = state_path
        self._clock = clock
        self._wait = wait
        self._saved_ms = self._now_ms()
        self._saved_point: ResumePoint | None = None
        self._complained_ms: int | None = None
        self._state_complained_ms: int | None = None
        self._unreported = 0

    def run(self, stopping: Callable[[], bool]) -> bool:
        """Run until `stopping()` is true, then send the rest.

        Returns:
            Whether all events were stored within `FLUSH_WITHIN_MS` after that.

        Raises:
            MeterStateNotWritten: The state file can not be written, at the start (nothing was sent) or at the end.
        """
        try:
            self.save()
            while not stopping():
                if not self.step():
                    self._wait(0.02)
            self._producer.send_open()
            give_up_ms = self._now_ms() + FLUSH_WITHIN_MS
            while self._producer.first_unsent() is not None and self._now_ms() < give_up_ms:
                self._producer.pump(self._now_ms())
                self._wait(0.01)
            self.save()
        finally:
            self._follower.close()
        return self._producer.first_unsent() is None

    def step(self) -> bool:
        """Read and send once; True if there was something to read."""
        lines = self._follower.read() if self._producer.has_space else []
        for line in lines:
            try:
                event = self._parser.parse(line.text)
            except MalformedLine as exc:
                self._report(exc, line.text)
                continue
            if event is not None:
                self._producer.add(event, line.start, self._now_ms())
        self._producer.pump(self._now_ms())
        if self._now_ms() - self._saved_ms >= SAVE_EVERY_MS:
            try:
                self.save()
            except MeterStateNotWritten as exc:
                self._warn_of_state(exc)
        return bool(lines)

    def save(self) -> None:
        """Write the state file if the place has changed.

        Raises:
            MeterStateNotWritten: It can not be written. The state of before is unchanged.
        """
        self._saved_ms = self._now_ms()
        point = self._follower.resume_point(self._producer.first_unsent() or self._follower.position)
        if self._state_path is None or point is None or point == self._saved_point:
            return
        write_state(self._state_path, point)
        self._saved_point = point
        self._state_complained_ms = None

    def _now_ms(self) -> int:
        return self._clock.now().steady_ms

    def _warn_of_state(self, error: MeterStateNotWritten) -> None:
        now_ms = self._now_ms()
        if self._state_complained_ms is None or now_ms - self._state_complained_ms >= COMPLAIN_EVERY_MS:
            logger.warning("%s (until then a restart reports usage again)", error)
            self._state_complained_ms = now_ms

    def _report(self, error: MalformedLine, text: str) -> None:
        self._unreported += 1
        now_ms = self._now_ms()
        if self._complained_ms is None or now_ms - self._complained_ms >= COMPLAIN_EVERY_MS:
            logger.warning(
                "%s of %s skipped: %s: %.120s",
                f"{self._unreported:,} malformed line{'s' if self._unreported > 1 else ''}",
                self._follower.path,
                error.reason,
                text,
            )
            self._complained_ms, self._unreported = now_ms, 0
