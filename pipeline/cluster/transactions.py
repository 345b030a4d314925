"""Transactions of one writer, each with the writer's mark inside: what is sent and how far it is cannot disagree.

The mark is the committed offset, with its metadata, of a consumer group on the marker topic. It moves in the same Kafka
transaction as the messages. Group and transactional id have the same name, so there is one writer of a name: a new one
fences those before it.

A request that is sent again after a lost connection may reach the broker twice, the second time late: in the next
transaction, where producer and epoch are the same. A late EndTxn ends that transaction before its mark, and a late
TxnOffsetCommit gives it the mark before. So after such a transaction a new producer takes the place of the old one: it
has a higher epoch, and the broker refuses what still comes with the lower one.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, Final, NamedTuple

from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka import errors as kafka_errors
from kafka.producer.transaction_manager import EndTxnHandler, TxnOffsetCommitHandler
from kafka.structs import OffsetAndMetadata

from pipeline.cluster.acls import Acl, marker_acls
from pipeline.cluster.connecting import ClusterAccess
from pipeline.errors import ClusterUnreachable, MessageTooLarge, PipelineError, TransactionFenced, TransactionUndecided
from pipeline.failpoints import failpoint

_FENCING: Final = (kafka_errors.ProducerFencedError, kafka_errors.InvalidProducerEpochError)
_TOO_LARGE: Final = (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError)
_COUNT_WHEN_LATE: Final = (EndTxnHandler, TxnOffsetCommitHandler)
_RETRY_SECONDS: Final = 0.1
_CLOSE_SECONDS: Final = 2
_LINGER_MS: Final = 100
"""So long a batch may wait to be full, while thousands of messages are sent: the last ones wait for nothing."""
RETRIED: Final = "nothing needs doing: it is tried again"


class Mark(NamedTuple):
    """How far a writer is: a number >= 0, and a text of at most the broker's `offset.metadata.max.bytes` (4 096)."""

    number: int
    text: str = ""


class MarkedTransactions:
    """Sends messages in transactions whose last act is to move the mark. Not safe for several threads.

    The marker topic has one partition and nothing in it; only its committed offset is used.
    """

    def __init__(
        self,
        identity: str,
        marker_topic: str,
        topic: str,
        access: ClusterAccess,
        transaction_timeout_ms: int,
        client_id: str | None = None,
    ) -> None:
        self._identity = identity
        self._marker_partition = TopicPartition(marker_topic, 0)
        self._access = access
        self._timeout_ms = transaction_timeout_ms
        # A broker that is cut off never answers: then there is time to ask the one that took its place.
        self._request_timeout_ms = min(max(transaction_timeout_ms // 3, 1_000), 10_000)
        self._options = {} if client_id is None else {"client_id": client_id}
        self._producer: Any = None
        self._mark: Mark | None = None
        self._needs_new_producer = False
        self._marker_rights = marker_acls(identity, marker_topic)
        self._rights = (Acl("topic", topic, "Write"), *self._marker_rights)

    def open(self) -> Mark | None:
        """Take over: a new producer with our transactional id fences every earlier one and aborts what it left open.

        A coordinator that is being elected, or whose topic is being made, is waited for. The mark is None if none is
        committed, or it has expired. `ClusterUnreachable` without an answer in time, to be tried again.
        """
        self.close()
        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            try:
                self._mark = self._opened()
                return self._mark
            except kafka_errors.KafkaError as exc:
                self.close()
                refused = self._access.refusal(exc, self._marker_rights)
                if refused is not None:
                    raise refused from exc
                if not isinstance(exc, kafka_errors.RetriableError) or time.monotonic() > deadline:
                    raise ClusterUnreachable(self._access.bootstrap_servers, detail_of(exc), RETRIED) from exc
                time.sleep(_RETRY_SECONDS)

    def commit(self, send: Callable[[Any], Sequence[Any]], mark: Mark) -> None:
        """Send messages and move the mark, all or nothing. After an error, but for `MessageTooLarge`, `open` again.

        * `send`: Gets the `kafka.KafkaProducer`, sends, and returns the futures of all that it sent; perhaps none.

        Raises:
            MessageTooLarge: Nothing is sent. The next `commit` has a new producer if the mark has not moved.
            TransactionUndecided: The outcome is not known, or the transaction failed.
            TransactionFenced: Another writer has taken over, or this transaction was open for too long.
            ClusterUnreachable, PermissionMissing: Nothing is sent: a new producer was needed, as `open` has it.
        """
        if self._needs_new_producer:
            self._replace_producer()
        producer = self._producer
        if producer is None:
            detail = "no open producer"
            raise TransactionUndecided(detail)
        try:
            producer.begin_transaction()
            sent, deadline = send(producer), time.monotonic() + self._timeout_ms / 1000
            # Wait for it first: kafka-python commits also what is left of a transaction of which a batch has expired,
            # as Kafka's own producer did before KAFKA-5385. `flush` lets nothing linger, but it fails if a batch was
            # split: what became of each message is in its future.
            with suppress(kafka_errors.KafkaError):
                producer.flush(self._timeout_ms / 1000)
            for future in sent:
                future.get(timeout=max(deadline - time.monotonic(), 0))
            self._move(producer, mark)
            self._mark = mark
            failpoint("transaction.committed")
        except kafka_errors.KafkaError as exc:
            self.close()
            failure = self._failure(first_failure(exc))
            self._needs_new_producer = isinstance(failure, MessageTooLarge)
            raise failure from exc

    def committed(self) -> Mark | None:
        """The mark, read without taking over; `ClusterUnreachable` without an answer, to be tried again.

        A transaction that is still being ended is not in it yet.
        """
        try:
            return self._committed()
        except kafka_errors.KafkaError as exc:
            refused = self._access.refusal(exc, self._marker_rights)
            raise refused or ClusterUnreachable(self._access.bootstrap_servers, detail_of(exc), RETRIED) from exc

    def close(self) -> None:
        """End the producer and its thread; aborts an open transaction. Harmless when called twice.

        `KafkaProducer.close` first waits for unsent records, and if they stay unsent it raises and closes nothing. So
        they are given up first, for which kafka-python has no public way.
        """
        producer, self._producer = self._producer, None
        if producer is None:
            return
        producer._sender.force_close()
        producer._sender.join(_CLOSE_SECONDS)
        with suppress(kafka_errors.KafkaError):
            producer.close(timeout=_CLOSE_SECONDS)

    def _opened(self) -> Mark | None:
        self._producer = self._access.open(
            KafkaProducer,
            transactional_id=self._identity,
            transaction_timeout_ms=self._timeout_ms,
            max_block_ms=self._timeout_ms,
            request_timeout_ms=self._request_timeout_ms,
            delivery_timeout_ms=self._timeout_ms + _LINGER_MS,
            linger_ms=_LINGER_MS,
            batch_size=262_144,
            **self._options,
        )
        self._needs_new_producer = False
        self._watch(self._producer._transaction_manager)
        _keep_requests(self._producer._sender._client)
        self._producer.init_transactions()
        return self._committed()

    def _watch(self, transactions: Any) -> None:
        """Note when a request that counts when it is late is sent again, for which kafka-python has no public way."""
        enqueue = transactions._enqueue_request

        def watch_and_enqueue(handler: Any) -> None:
            if isinstance(handler, _COUNT_WHEN_LATE) and not handler.is_retry:
                handler.reenqueue = partial(self._send_again, handler.reenqueue)
            enqueue(handler)

        transactions._enqueue_request = watch_and_enqueue

    def _send_again(self, reenqueue: Callable[[], None]) -> None:
        self._needs_new_producer = True
        reenqueue()

    def _replace_producer(self) -> None:
        committed = self._mark
        if self.open() not in {committed, None}:
            self.close()
            raise TransactionFenced(self._identity)

    def _failure(self, exc: kafka_errors.KafkaError) -> PipelineError:
        if isinstance(exc, _FENCING):
            return TransactionFenced(self._identity)
        if isinstance(exc, _TOO_LARGE):
            return MessageTooLarge(detail_of(exc))
        return self._access.refusal(exc, self._rights) or TransactionUndecided(detail_of(exc))

    def _move(self, producer: Any, mark: Mark) -> None:
        """`send_offsets_to_transaction` and `commit_transaction`, which wait without end for a broker that is gone."""
        transactions = producer._transaction_manager
        offsets = {self._marker_partition: OffsetAndMetadata(mark.number, mark.text, -1)}
        self._wait(producer, transactions.send_offsets_to_transaction(offsets, self._identity))
        failpoint("transaction.sent")
        self._wait(producer, transactions.begin_commit())

    def _wait(self, producer: Any, result: Any) -> None:
        producer._sender.wakeup()
        if not result.wait(self._timeout_ms):
            message = f"the broker has not answered within {self._timeout_ms / 1000:g} s"
            raise kafka_errors.KafkaTimeoutError(message)

    def _committed(self) -> Mark | None:
        with closing(self._access.open(KafkaAdminClient, request_timeout_ms=self._request_timeout_ms)) as admin:
            offsets = admin.list_group_offsets({self._identity: [self._marker_partition]})[self._identity]
        found = offsets.get(self._marker_partition)
        return None if found is None or found.offset < 0 else Mark(int(found.offset), found.metadata or "")


def _keep_requests(client: Any) -> None:
    """Let no request get lost because its coordinator refuses the connection, as a broker does that was killed.

    kafka-python 3.0 asks `await_ready`, which then raises, and it forgets the request that it was about to send: the
    transaction goes on only after its time-out. After the answer "not ready" it looks for the coordinator, and asks it.
    """
    await_ready = client.await_ready

    def is_ready(node_id: Any, timeout_ms: int) -> bool:
        try:
            return bool(await_ready(node_id, timeout_ms=timeout_ms))
        except kafka_errors.KafkaConnectionError:
            time.sleep(_RETRY_SECONDS)  # the brokers name the same coordinator until they have elected another one
            return False

    client.await_ready = is_ready


def first_failure(exc: kafka_errors.KafkaError) -> kafka_errors.KafkaError:
    """The error that a transaction failed with first; kafka-python wraps it for each later call."""
    wrapped = next((one for one in exc.args if isinstance(one, kafka_errors.KafkaError)), None)
    return exc if wrapped is None else first_failure(wrapped)


def detail_of(exc: Exception) -> str:
    """Class and text of an error of kafka-python."""
    return f"{type(exc).__name__}: {exc}".rstrip(": ")
