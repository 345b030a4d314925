"""What is new on the throttle topic, record by record, in the order in which the job wrote it."""

import logging
import time
from typing import Final, NamedTuple

from kafka.errors import KafkaError

from pipeline.gate.topic_reader import Ends, Found, ThrottleTopicReader
from schemas.throttle_record import ThrottleRecord

log = logging.getLogger(__name__)

BEGINNING: Final = 0
PROBE_EVERY_SECONDS: Final = 2.0


class Tailed(NamedTuple):
    """A record as it is told.

    Attributes:
        record: As it was published.
        extends: Whether it makes a running throttle longer: a violation under the id of the decision that began it.
    """

    record: ThrottleRecord
    extends: bool


class RunningDecisions:
    """Tells extensions from new throttles, which have the same action and cause. It must see all records in order."""

    def __init__(self) -> None:
        self._running: dict[bytes, str] = {}

    def extends(self, record: ThrottleRecord) -> bool:
        """Whether a record extends the throttle that its client has; the next answer builds on this record."""
        key = record.key()
        before = self._running.pop(key, None)
        if record.action == "release":
            return False
        self._running[key] = record.decision_id
        return record.cause == "violation" and record.decision_id == before


class ThrottleTail:
    """The records of the topic from an instant on. One thread.

    It reads the whole topic first, as the throttles that run now began before: else it could not tell an extension.

    Args:
        reader: Open, and nothing read from it.
        since_ms: Records that were written at this instant or later, by wall clock; `BEGINNING` = all that the topic
            still has; None = those that come from now on.
    """

    def __init__(self, reader: ThrottleTopicReader, since_ms: int | None) -> None:
        self._reader = reader
        self._since_ms = since_ms
        self._ends: Ends = reader.ends()
        self._decisions = RunningDecisions()
        self._first: list[Found] | None = []
        self._probe_at = time.monotonic() + PROBE_EVERY_SECONDS
        self._is_away = False

    def step(self, wait_ms: int) -> list[Tailed]:
        """The next wanted records; empty while the topic is read for the first time, or if nothing comes.

        A broker that is away is told once in the log; the next records come when it is back.

        Raises:
            KafkaError: The topic can no longer be read.
        """
        if self._reader.take_is_new_topic():
            self._ends, self._decisions = {}, RunningDecisions()
        found = self._reader.poll(wait_ms)
        self._look_after_the_brokers()
        if self._first is not None:
            self._first += found
            if not self._reader.has_read(self._ends):
                return []
            found, self._first = self._first, None
        # Partitions are read one after the other, but the job has counted its records up.
        found.sort(key=lambda one: (one.record.cluster, one.record.publish_seq))
        told = [(one, self._decisions.extends(one.record)) for one in found]
        return [Tailed(one.record, extends) for one, extends in told if self._is_wanted(one)]

    def _is_wanted(self, found: Found) -> bool:
        if self._since_ms is None:
            return found.offset >= self._ends.get(found.partition, 0)
        return found.record.written_ms >= self._since_ms

    def _look_after_the_brokers(self) -> None:
        if time.monotonic() < self._probe_at:
            return
        try:
            self._reader.add_partitions()
            self._reader.probe()
        except KafkaError as exc:
            if not self._is_away:
                log.warning("the throttle topic does not answer, it is tried again: %s", self._reader.told(exc))
            self._is_away = True
        else:
            if self._is_away:
                log.warning("the throttle topic answers again; nothing was missed")
            self._is_away = False
        self._probe_at = time.monotonic() + PROBE_EVERY_SECONDS
