"""Every stored row reaches the topic once, in order, whatever a transaction does."""

from collections.abc import Sequence
from typing import Literal
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.clock import Moment
from pipeline.errors import Conflict, MessageTooLarge, PipelineError, TransactionFenced, TransactionUndecided
from pipeline.tables.port import TableUnreadable
from pipeline.throttle.publisher import Marker, Publisher
from quota.decisions import Evaluation
from schemas.names import ClientKey
from schemas.throttle_record import ThrottleRecord
from tests.fakes.outbox import MemoryOutbox
from tests.fakes.topic import MemoryTopic, TopicBroker
from tests.pipeline.throttle.factories import BOB, Publication, publications, violation

FACTS = Evaluation("query", 7, 1_700_000_000_000, 3)
NOW = Moment(1_700_000_000_000, 1_700_000_000_000)


class SlowTopic(MemoryTopic):
    """One whose broker needs too long for a transaction of many records."""

    def __init__(self, broker: TopicBroker, most_records: int) -> None:
        super().__init__(broker)
        self._most_records = most_records
        self.sizes: list[int] = []

    def publish(self, records: Sequence[ThrottleRecord], marker: Marker) -> None:
        if len(records) > self._most_records:
            raise TransactionUndecided(detail="the transaction was open for too long")
        if records:
            self.sizes.append(len(records))
        super().publish(records, marker)


def started(
    outbox: MemoryOutbox, place: TopicBroker | MemoryTopic, job: str = "kquota", *, takes_topic: bool = False
) -> Publisher:
    topic = MemoryTopic(place, job) if isinstance(place, TopicBroker) else place
    publisher = Publisher(job, "test", outbox, topic)
    publisher.take_over(outbox.newest()[0], NOW, takes_topic)
    return publisher


def write(publisher: Publisher, *news: Publication, batch_id: int | None = None) -> int:
    versions = None if batch_id is None else {"query": batch_id}
    return publisher.write(publications(*news), FACTS, NOW.wall_ms, versions)


def sequences(broker: TopicBroker) -> list[int]:
    return [record.publish_seq for record in broker.records]


def test_a_start_marks_the_topic_with_its_table_and_nothing_to_write_moves_nothing() -> None:
    outbox, broker = MemoryOutbox(), TopicBroker()
    for before in (None, Marker(0)):
        broker.marker = before
        publisher = started(outbox, broker)
        assert write(publisher, batch_id=7) == 0
        assert (outbox.rows, broker.marker, publisher.next_seq) == ([], Marker(0, outbox.table_id), 0)


@pytest.mark.parametrize(("failure", "sequence"), [("late", [0, 1, 2]), ("lost", [0, 1])])
def test_after_a_failed_append_nothing_is_written_until_a_start_reads_the_table(
    failure: Literal["late", "lost"], sequence: list[int]
) -> None:
    outbox, broker = MemoryOutbox(), TopicBroker()
    publisher = started(outbox, broker)
    write(publisher, violation())
    outbox.fail_next = failure
    with pytest.raises(OSError, match="does not answer"):
        write(publisher, violation(BOB))
    with pytest.raises(PipelineError, match="publish_seq 1 "):
        write(publisher, violation())
    write(started(outbox, broker), violation())
    assert sequences(broker) == sequence


def test_after_a_failed_transaction_many_records_go_in_smaller_ones_that_grow() -> None:
    outbox, broker = MemoryOutbox(), TopicBroker()
    topic = SlowTopic(broker, most_records=12_000)
    publisher = started(outbox, topic)
    write(publisher, *[violation()] * 20_001)
    assert (publisher.is_behind, topic.sizes) == (True, [])
    assert publisher.catch_up(NOW)
    assert topic.sizes == [5_000, 10_000, 5_001]
    assert sequences(broker) == list(range(20_001))


def test_rows_wait_in_the_outbox_while_the_broker_is_away() -> None:
    outbox, broker = MemoryOutbox(), TopicBroker()
    publisher = started(outbox, broker)
    broker.is_reachable = False
    for _ in range(3):
        write(publisher, violation())
    assert not publisher.catch_up(NOW)
    broker.is_reachable = True
    assert not publisher.catch_up(NOW), "the back-off has not passed yet"
    assert publisher.catch_up(Moment(NOW.wall_ms, NOW.steady_ms + 250))
    assert sequences(broker) == [0, 1, 2]


def test_a_publisher_that_is_behind_waits_for_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    outbox, broker = MemoryOutbox(), TopicBroker()
    publisher = started(outbox, broker)
    broker.is_reachable = False
    write(publisher, violation())
    broker.is_reachable = True
    with monkeypatch.context() as away:
        away.setattr(outbox, "is_fenced", Mock(side_effect=TableUnreadable("throttle_events", "no answer")))
        assert not publisher.catch_up(NOW)
    assert publisher.catch_up(Moment(NOW.wall_ms, NOW.steady_ms + 250))
    assert sequences(broker) == [0]


def test_a_fenced_publisher_stops_when_another_driver_has_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    outbox, broker = MemoryOutbox(), TopicBroker()
    first = started(outbox, broker)
    started(outbox, broker)
    monkeypatch.setattr(outbox, "is_fenced", lambda: True)  # another driver has taken over since the append
    with pytest.raises(TransactionFenced, match="another writer has taken over"):
        write(first, violation())


@pytest.mark.parametrize("answers", [[True], [False, True]], ids=["before it opens the topic", "meanwhile"])
def test_a_publisher_that_is_behind_stops_when_another_driver_has_the_tables(
    answers: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, broker = MemoryOutbox(), TopicBroker()
    first = started(outbox, broker)
    broker.is_reachable = False
    write(first, violation())
    broker.is_reachable = True
    monkeypatch.setattr(outbox, "is_fenced", iter(answers).__next__)
    with pytest.raises(TransactionFenced):
        first.catch_up(NOW)
    assert sequences(broker) == []


def test_a_record_that_is_too_large_repeats_none_when_another_driver_takes_over() -> None:
    class Followed(MemoryTopic):
        def publish(self, rows: pa.Table, marker: Marker) -> None:
            try:
                super().publish(rows, marker)
            except MessageTooLarge:
                started(outbox, broker)
                raise

    outbox, broker = MemoryOutbox(), TopicBroker()
    first = started(outbox, Followed(broker))
    write(first, violation(), violation(ClientKey("", "x" * 600_000, "c")))
    assert first.catch_up(NOW)
    assert sequences(broker) == [0]


def test_a_second_driver_with_a_copy_of_the_tables_ends_the_first() -> None:
    outbox, copied, broker = MemoryOutbox(), MemoryOutbox(), TopicBroker()
    copied.table.id = outbox.table_id
    first = started(outbox, broker)
    write(started(copied, broker), violation(BOB), violation(BOB))
    write(first, violation())
    with pytest.raises(TransactionFenced):
        first.catch_up(NOW)


def test_a_pause_above_the_transaction_time_out_is_not_taken_for_a_second_driver() -> None:
    outbox, broker = MemoryOutbox(), TopicBroker()
    publisher = started(outbox, broker)
    write(publisher, violation())
    broker.epoch += 1  # the coordinator has aborted the transaction and raised the producer's epoch
    write(publisher, violation(BOB))
    assert publisher.is_behind
    assert publisher.catch_up(NOW)
    write(publisher, violation())
    assert sequences(broker) == [0, 1, 2]


def test_a_job_of_the_same_name_with_other_tables_is_refused_and_disturbs_none() -> None:
    broker, production, laptop = TopicBroker(), MemoryOutbox(), MemoryOutbox()
    first = started(production, broker)
    with pytest.raises(Conflict, match=f"{production.table_id} .* ours is {laptop.table_id}") as refused:
        started(laptop, broker)
    assert (refused.value.exit_code, "--take-topic" in refused.value.fix) == (4, True)
    write(first, violation())
    assert not first.is_behind
    assert sequences(broker) == [0]


@pytest.mark.parametrize("others", [0, 1])
def test_a_job_that_takes_the_topic_ends_the_one_that_runs_and_it_can_be_taken_back(others: int) -> None:
    broker, production, laptop = TopicBroker(), MemoryOutbox(), MemoryOutbox()
    first = started(production, broker)
    write(first, violation())
    second = started(laptop, broker, takes_topic=True)
    assert broker.marker == Marker(1, laptop.table_id)
    write(first, violation())
    for start_again in (lambda: first.catch_up(NOW), lambda: started(production, broker)):
        with pytest.raises(Conflict, match=f"has the id {laptop.table_id}"):
            start_again()
    write(second, *[violation(BOB)] * others)
    first = started(production, broker, takes_topic=True)
    write(first, violation())
    published = [(record.user, record.publish_seq) for record in broker.records]
    taken = [("bob", 1)] if others else [("alice", 1)]  # which number has been given is given no second time
    assert published == [("alice", 0), *taken, ("alice", 2)]
    with pytest.raises(Conflict):
        started(laptop, broker)


def test_a_job_begins_after_the_highest_number_on_a_topic_of_no_known_job() -> None:
    broker = TopicBroker()
    write(started(MemoryOutbox(), broker), *[violation()] * 50)
    broker.marker, broker.job = None, ""
    outbox = MemoryOutbox()
    write(started(outbox, broker, "second"), violation())
    assert [row["publish_seq"] for row in outbox.rows] == [50]


def test_another_jobs_topic_is_refused() -> None:
    broker = TopicBroker()
    write(started(MemoryOutbox(), broker), violation())
    broker.marker = None  # the marker is the group's of the job, and the second has none
    with pytest.raises(Conflict, match=r"records of job 'kquota'.* job 'second'"):
        started(MemoryOutbox(), broker, "second")


@pytest.mark.parametrize("place", [0, 1, 4, 8])
def test_a_record_the_topic_can_never_take_is_settled_once_and_the_others_go_on(place: int) -> None:
    outbox, broker = MemoryOutbox(), TopicBroker()
    publisher = started(outbox, broker)
    news = [violation(ClientKey("", "x" * 600_000 if number == place else "alice", "c")) for number in range(9)]
    write(publisher, *news)
    assert sequences(broker) == [number for number in range(9) if number != place]
    assert (broker.marker, len(outbox.rows)) == (Marker(9, outbox.table_id), 9)
    write(publisher, violation())
    write(started(outbox, broker), violation(BOB))
    assert sequences(broker)[-2:] == [9, 10], "neither this process nor the next one tries it again"


@given(st.lists(st.sampled_from(["ok", "lost", "late", "restart", "lost marker"]), max_size=30))
def test_the_topic_has_every_stored_row_once_and_in_order(steps: list[str]) -> None:
    outbox, broker = MemoryOutbox(), TopicBroker()
    topic = MemoryTopic(broker)
    publisher = started(outbox, topic)
    for batch_id, step in enumerate(steps):
        if step == "restart":
            topic = MemoryTopic(broker)
            publisher = started(outbox, topic)
        elif step == "lost marker":
            broker.marker = None
        else:
            publisher.catch_up(NOW)
            topic.fail_next = step if step in {"lost", "late"} else None
            write(publisher, violation(), violation(BOB), batch_id=batch_id)
    publisher = started(outbox, broker)
    assert sequences(broker) == [row["publish_seq"] for row in outbox.rows] == list(range(len(outbox.rows)))


def test_numbers_go_on_from_a_topic_that_is_ahead_of_the_outbox() -> None:
    broker, whole, lost = TopicBroker(), MemoryOutbox(), MemoryOutbox()
    write(started(whole, broker), violation(), violation(BOB))
    lost.table.id = whole.table_id
    again = started(lost, broker)
    write(again, violation())
    assert sequences(broker) == [0, 1, 2]
    assert [row["publish_seq"] for row in lost.rows] == [2]


@pytest.mark.parametrize(("rest_ms", "published"), [(3_599_000, [0]), (3_601_001, [])])
def test_after_a_long_rest_without_a_marker_nothing_old_is_published_again(rest_ms: int, published: list[int]) -> None:
    outbox, broker = MemoryOutbox(), TopicBroker()
    write(started(outbox, broker), violation(throttle_time_ms=1_000))
    broker.marker, broker.records = None, []
    publisher = Publisher("kquota", "test", outbox, MemoryTopic(broker))
    publisher.take_over(0, Moment(NOW.wall_ms + rest_ms, NOW.steady_ms))
    assert sequences(broker) == published
    write(publisher, violation(BOB))
    assert sequences(broker) == [*published, 1]
