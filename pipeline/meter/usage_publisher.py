"""Publishes batches of usage, each exactly once, together with the place in the log that it reaches to.

A batch whose transaction failed, or of which nobody knows, is published again after the mark was read: if the mark is
the batch's own, it was stored; if it is the one before, it was not. Another mark is a second meter's, and this one
ends. A pause that the transaction did not survive leaves the mark as it was, so it is not taken for a second meter.
"""

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.cluster.errors import (
    ClusterUnreachable,
    PermissionMissing,
    SignInRefused,
    TransactionFenced,
    TransactionUndecided,
)
from pipeline.cluster.marked_transactions import Mark
from pipeline.errors import PipelineError
from pipeline.meter.errors import MeterFenced
from pipeline.meter.kafka_usage_topic import UsageWriter
from pipeline.meter.log_place import LogPlace
from pipeline.meter.meter_mark import mark_of
from pipeline.meter.usage_batch import Message

logger = logging.getLogger(__name__)

COMPLAIN_EVERY_MS: Final = 5_000
_FIRST_RETRY_MS: Final = 250
_LONGEST_RETRY_MS: Final = 4_000
_CLAIMS: Final = 5
_TRIED_AGAIN: Final = (
    ClusterUnreachable,
    PermissionMissing,
    SignInRefused,
    TransactionFenced,
    TransactionUndecided,
)


@dataclass(slots=True)
class DeliveryCounts:
    """What was sent so far.

    Attributes:
        events: Events stored on the topic.
        messages: Messages stored on the topic.
        failures: Transactions that failed, or whose outcome was not known.
    """

    events: int = 0
    messages: int = 0
    failures: int = 0

    def __str__(self) -> str:
        return f"{self.events:,} stored in {self.messages:,} messages, {self.failures:,} transactions tried again"


class UsagePublisher:
    """The one publisher of a broker's usage. One thread.

    Args:
        broker_id: For messages.
        topic: The usage topic.
        destination: Topic and address, for warnings.
    """

    def __init__(self, broker_id: str, topic: UsageWriter, destination: str) -> None:
        self.counts = DeliveryCounts()
        self._broker_id = broker_id
        self._topic = topic
        self._destination = destination
        self._meter = uuid.uuid4().hex
        self._mark: Mark | None = None
        self._tried: Mark | None = None
        self._is_open = False
        self._failures_in_a_row = 0
        self._retry_at_ms: int | None = None
        self._complained_ms: int | None = None

    @property
    def partition_count(self) -> int:
        """Partitions of the usage topic."""
        return self._topic.partition_count

    def take_over(self) -> LogPlace | None:
        """Fence every earlier meter of this broker, and put this one's name into the mark.

        Returns:
            Where the earlier meter has stopped, None if there was none. Then the first batch makes the mark.

        Raises:
            MeterMarkDamaged: The mark is none that a meter has written.
            ClusterUnreachable, PermissionMissing, SignInRefused, TransactionUndecided: The topic can not be written.
            TransactionFenced: Another meter of this broker takes the topic back, again and again.
        """
        for tries_left in reversed(range(_CLAIMS)):
            self._mark = self._topic.open()
            self._is_open = True
            if self._mark is None:
                return None
            place = self._topic.place_of(self._mark)
            try:
                self._commit([], place)
            except (TransactionFenced, TransactionUndecided):
                # The earlier meter may open the topic once more before it hears of this one.
                if not tries_left:
                    raise
            else:
                return place
        return None

    def publish(self, messages: Sequence[Message], events: int, place: LogPlace, now_ms: int) -> bool:
        """Store a batch and its place. Call it again with the same until it is true.

        Args:
            messages: The events; may be empty, which only moves the place.
            events: How many.
            place: After all lines of the batch.
            now_ms: Steady time.

        Returns:
            Whether they are stored. False: the next try is due later; nothing is known yet.

        Raises:
            MeterFenced: A second meter has taken over; it goes on at the place of the last batch that was stored.
        """
        if self._retry_at_ms is not None and now_ms < self._retry_at_ms:
            return False
        try:
            if self._is_open or not self._was_stored():
                self._commit(messages, place)
        except _TRIED_AGAIN as exc:
            self._is_open = False
            self._put_off(exc, events, now_ms)
            return False
        self._tried = self._retry_at_ms = self._complained_ms = None
        self._failures_in_a_row = 0
        self.counts.messages += len(messages)
        self.counts.events += events
        return True

    def close(self) -> None:
        """Leave the topic. A batch that is not stored is read again from the log by the next meter."""
        self._is_open = False
        self._topic.close()

    def _commit(self, messages: Sequence[Message], place: LogPlace) -> None:
        number = 0 if self._mark is None else self._mark.number + 1
        self._tried = mark_of(number, self._meter, place)
        self._topic.commit(messages, self._tried)
        self._mark = self._tried

    def _was_stored(self) -> bool:
        """Open the topic again, and see what has become of the transaction that was tried."""
        # First without fencing: a second meter shall not be disturbed by the one that ends.
        self._refuse_another(self._topic.committed())
        mark = self._topic.open()
        self._refuse_another(mark)
        self._is_open = True
        was_stored = mark is not None and mark == self._tried
        self._mark = mark
        return was_stored

    def _refuse_another(self, mark: Mark | None) -> None:
        if mark not in (self._mark, self._tried):
            raise MeterFenced(self._broker_id)

    def _put_off(self, error: PipelineError, events: int, now_ms: int) -> None:
        self.counts.failures += 1
        delay_ms = min(_FIRST_RETRY_MS * 2**self._failures_in_a_row, _LONGEST_RETRY_MS)
        self._failures_in_a_row += 1
        self._retry_at_ms = now_ms + delay_ms
        if self._complained_ms is not None and now_ms - self._complained_ms < COMPLAIN_EVERY_MS:
            return
        self._complained_ms = now_ms
        cause = str(error)
        if isinstance(error, TransactionFenced):
            cause = "a transaction was open for longer than its time-out, or a second meter of this broker has started"
        logger.warning(
            "%s usage events are not known to be stored on %s: %s; trying again",
            f"{events:,}",
            self._destination,
            cause,
        )
