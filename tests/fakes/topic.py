"""A throttle topic in memory. It fulfils the contract of `pipeline.throttle.publisher.ThrottleTopic`."""

from collections.abc import Callable, Sequence

import pyarrow as pa

from pipeline.errors import ClusterUnreachable, MessageTooLarge, TransactionFenced, TransactionUndecided
from pipeline.throttle.publisher import Marker, TopicEnd
from schemas.throttle_record import MESSAGE_COLUMNS, ThrottleRecord
from tests.throttle_records import message, stored_record


class TopicBroker:
    """What several writers of one job share: committed records, the marker, and who may write."""

    def __init__(self) -> None:
        self.records: list[ThrottleRecord] = []
        self.marker: Marker | None = None
        self.epoch = 0
        self.job = ""
        self.max_record_bytes = 1_048_576
        self.is_reachable = True
        self.readers: list[Callable[[Sequence[ThrottleRecord]], None]] = []
        self._in_flight: tuple[Sequence[ThrottleRecord], Marker] | None = None

    def leave_in_flight(self, records: Sequence[ThrottleRecord], marker: Marker) -> None:
        """The end of a transaction is asked for and not done yet."""
        self._in_flight = records, marker

    def settle(self, commits: bool = True) -> None:
        """What is in flight, if anything, is committed, or it is aborted."""
        if self._in_flight is not None and commits:
            records, self.marker = self._in_flight
            self.commit(records)
        self._in_flight = None

    def commit(self, records: Sequence[ThrottleRecord]) -> None:
        self.records += records
        for read in self.readers:
            read(records)


class MemoryTopic:
    """One writer.

    `fail_next` makes the next transaction undecided: "lost" before its commit, "late" after it, or "in flight": it is
    committed when the topic is opened, or when the broker settles it earlier.
    """

    def __init__(self, broker: TopicBroker, job: str = "kquota") -> None:
        self._broker = broker
        self._job = job
        self._epoch = 0
        self._mark: Marker | None = None
        self._needs_opening = False
        self.fail_next: str | None = None

    def committed(self) -> Marker | None:
        if not self._broker.is_reachable:
            raise ClusterUnreachable(bootstrap_servers="memory", cause="switched off", fix="switch it on")
        return self._broker.marker

    def open(self) -> Marker | None:
        self.committed()
        self._broker.settle()
        self._broker.epoch += 1
        self._epoch, self._needs_opening = self._broker.epoch, False
        self._mark = self._broker.marker
        return self._mark

    def publish(self, rows: pa.Table, marker: Marker) -> None:
        before = self._mark
        if self._needs_opening and self.open() not in {before, None}:
            self.close()
            raise TransactionFenced(self._job)
        if self._epoch < 0:
            raise TransactionUndecided(detail="no open producer")
        if self._epoch != self._broker.epoch:
            self.close()
            raise TransactionFenced(self._job)
        failure, self.fail_next = self.fail_next, None
        if failure == "lost" or not self._broker.is_reachable:
            raise TransactionUndecided(detail="the transaction was lost")
        records = [stored_record(row) for row in rows.select(MESSAGE_COLUMNS).to_pylist()]
        sizes = (len(one.key) + len(one.value) for one in map(message, records))
        if any(size > self._broker.max_record_bytes for size in sizes):
            self._needs_opening = True
            raise MessageTooLarge(detail="a record that is too large")
        self._broker.job = self._job
        if failure == "in flight":
            self._broker.leave_in_flight(records, marker)
            raise TransactionUndecided(detail="the end of the transaction was not answered")
        self._broker.marker = self._mark = marker
        self._broker.commit(records)
        if failure == "late":
            raise TransactionUndecided(detail="the answer was lost")

    def end(self) -> TopicEnd:
        highest = max((record.publish_seq for record in self._broker.records), default=-1)
        return TopicEnd(highest, self._broker.job if highest >= 0 else "")

    def close(self) -> None:
        self._epoch = -1
