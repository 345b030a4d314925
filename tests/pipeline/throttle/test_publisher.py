"""Every stored row reaches the topic once, in order, whatever a transaction does."""

from collections.abc import Sequence
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.clock import Moment
from pipeline.errors import Conflict, PipelineError, TransactionFenced, TransactionUndecided
from pipeline.throttle.publisher import Marker, Publisher
from quota.replay import Evaluation
from schemas.names import ClientKey
from schemas.throttle_record import ThrottleRecord
from tests.fakes.outbox import MemoryOutbox
from tests.fakes.topic import MemoryTopic, TopicBroker
from tests.pipeline.throttle.factories import BOB, publications, violation

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


def started(outbox: MemoryOutbox, topic: MemoryTopic, job: str = "kquota", *, takes_topic: bool = False) -> Publisher:
    publisher = Publisher(job, "test", outbox, topic)
    publisher.take_over(outbox.newest()[0], NOW, takes_topic)
    return publisher


def sequences(broker: TopicBroker) -> list[int]:
    return [record.publish_seq for record in broker.records]


def test_a_start_puts_the_id_of_its_table_into_the_marker_and_nothing_to_write_moves_nothing() -> None:
    outbox, broker = MemoryOutbox(), TopicBroker()
    publisher = started(outbox, MemoryTopic(broker))
    assert publisher.write(publications(), FACTS, NOW.wall_ms, {"query": 7}) == 0
    assert (outbox.versions, broker.marker, publisher.next_seq) == ({}, Marker(0, outbox.table_id), 0)


@pytest.mark.parametrize(("failure", "sequence"), [("late", [0, 1, 2]), ("lost", [0, 1])])
def test_after_an_append_that_raised_nothing_is_written_until_a_start_has_read_what_is_stored(
    failure: Literal["late", "lost"], sequence: list[int]
) -> None:
    outbox, broker = MemoryOutbox(), TopicBroker()
    publisher = started(outbox, MemoryTopic(broker))
    publisher.write(publications(violation()), FACTS, NOW.wall_ms)
    outbox.fail_next = failure
    with pytest.raises(OSError, match="does not answer"):
        publisher.write(publications(violation(BOB)), FACTS, NOW.wall_ms)
    with pytest.raises(PipelineError, match="publish_seq 1 "):
        publisher.write(publications(violation()), FACTS, NOW.wall_ms)
    started(outbox, MemoryTopic(broker)).write(publications(violation()), FACTS, NOW.wall_ms)
    assert sequences(broker) == sequence


def test_after_a_transaction_that_failed_many_records_go_in_smaller_ones_that_grow_again() -> None:
    outbox, broker = MemoryOutbox(), TopicBroker()
    topic = SlowTopic(broker, most_records=12_000)
    publisher = started(outbox, topic)
    publisher.write(publications(*[violation()] * 20_001), FACTS, NOW.wall_ms)
    assert (publisher.is_behind, topic.sizes) == (True, [])
    assert publisher.catch_up(NOW)
    assert topic.sizes == [5_000, 10_000, 5_001]
    assert sequences(broker) == list(range(20_001))


def test_rows_wait_in_the_outbox_while_the_broker_is_away() -> None:
    outbox, broker = MemoryOutbox(), TopicBroker()
    publisher = started(outbox, MemoryTopic(broker))
    broker.is_reachable = False
    for _ in range(3):
        publisher.write(publications(violation()), FACTS, NOW.wall_ms)
    assert not publisher.catch_up(NOW)
    broker.is_reachable = True
    assert not publisher.catch_up(NOW), "the back-off has not passed yet"
    assert publisher.catch_up(Moment(NOW.wall_ms, NOW.steady_ms + 250))
    assert sequences(broker) == [0, 1, 2]


def test_a_fenced_publisher_stops_when_another_driver_has_the_tables() -> None:
    outbox, broker = MemoryOutbox(), TopicBroker()
    first = started(outbox, MemoryTopic(broker))
    started(outbox, MemoryTopic(broker))
    outbox.is_taken_over = True
    with pytest.raises(TransactionFenced, match="another writer has taken over"):
        first.write(publications(violation()), FACTS, NOW.wall_ms)


def test_a_second_driver_with_a_copy_of_the_tables_ends_the_first_once_it_has_published() -> None:
    outbox, copied, broker = MemoryOutbox(), MemoryOutbox(), TopicBroker()
    copied.table_id = outbox.table_id
    first = started(outbox, MemoryTopic(broker))
    started(copied, MemoryTopic(broker)).write(publications(violation(BOB), violation(BOB)), FACTS, NOW.wall_ms)
    first.write(publications(violation()), FACTS, NOW.wall_ms)
    with pytest.raises(TransactionFenced):
        first.catch_up(NOW)


def test_a_pause_longer_than_the_transaction_time_out_is_not_taken_for_a_second_driver(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outbox, broker = MemoryOutbox(), TopicBroker()
    publisher = started(outbox, MemoryTopic(broker))
    publisher.write(publications(violation()), FACTS, NOW.wall_ms)
    broker.epoch += 1  # the coordinator has aborted the transaction and raised the producer's epoch
    publisher.write(publications(violation(BOB)), FACTS, NOW.wall_ms)
    assert publisher.is_behind
    assert "after a pause" not in caplog.text, "that is not known before the marker is read"
    assert publisher.catch_up(NOW)
    assert "after a pause" in caplog.text
    publisher.write(publications(violation()), FACTS, NOW.wall_ms)
    assert sequences(broker) == [0, 1, 2]


def test_a_job_of_the_same_name_with_other_tables_is_refused_and_does_not_disturb_the_one_that_runs() -> None:
    broker, production, laptop = TopicBroker(), MemoryOutbox(), MemoryOutbox()
    first = started(production, MemoryTopic(broker))
    with pytest.raises(
        Conflict, match=f"{production.table_id} of their throttle_events, ours is {laptop.table_id}"
    ) as refused:
        started(laptop, MemoryTopic(broker))
    assert refused.value.exit_code == 4
    assert "--take-topic" in refused.value.fix
    first.write(publications(violation()), FACTS, NOW.wall_ms)
    assert not first.is_behind
    assert sequences(broker) == [0]


@pytest.mark.parametrize("others", [0, 1])
def test_a_job_that_takes_the_topic_ends_the_one_that_runs_and_it_can_be_taken_back(
    others: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker, production, laptop = TopicBroker(), MemoryOutbox(), MemoryOutbox()
    first = started(production, MemoryTopic(broker))
    first.write(publications(violation()), FACTS, NOW.wall_ms)
    second = started(laptop, MemoryTopic(broker), takes_topic=True)
    assert broker.marker == Marker(1, laptop.table_id)
    first.write(publications(violation()), FACTS, NOW.wall_ms)
    for start_again in (lambda: first.catch_up(NOW), lambda: started(production, MemoryTopic(broker))):
        with pytest.raises(Conflict, match=f"has the id {laptop.table_id}"):
            start_again()
    assert "after a pause" not in caplog.text
    second.write(publications(*[violation(BOB)] * others), FACTS, NOW.wall_ms)
    first = started(production, MemoryTopic(broker), takes_topic=True)
    first.write(publications(violation()), FACTS, NOW.wall_ms)
    published = [(record.user, record.publish_seq) for record in broker.records]
    taken = [("bob", 1)] if others else [("alice", 1)]  # which number has been given is given no second time
    assert published == [("alice", 0), *taken, ("alice", 2)]
    with pytest.raises(Conflict):
        started(laptop, MemoryTopic(broker))


def test_a_marker_without_the_id_of_a_table_gets_it_at_the_next_start() -> None:
    broker, outbox = TopicBroker(), MemoryOutbox()
    started(outbox, MemoryTopic(broker)).write(publications(violation()), FACTS, NOW.wall_ms)
    broker.marker = Marker(1)
    started(outbox, MemoryTopic(broker))
    assert broker.marker == Marker(1, outbox.table_id)


def test_a_job_begins_after_the_highest_number_on_a_topic_that_does_not_say_whose_it_is() -> None:
    broker = TopicBroker()
    started(MemoryOutbox(), MemoryTopic(broker)).write(publications(*[violation()] * 50), FACTS, NOW.wall_ms)
    broker.marker, broker.job = None, ""
    outbox = MemoryOutbox()
    started(outbox, MemoryTopic(broker, "second"), "second").write(publications(violation()), FACTS, NOW.wall_ms)
    assert [row["publish_seq"] for row in outbox.rows] == [50]


def test_another_jobs_topic_is_refused() -> None:
    broker = TopicBroker()
    started(MemoryOutbox(), MemoryTopic(broker)).write(publications(violation()), FACTS, NOW.wall_ms)
    broker.marker = None  # the marker is the group's of the job, and the second has none
    with pytest.raises(
        Conflict, match="records of job 'kquota', and each job needs its own; this is job 'second'"
    ) as refused:
        started(MemoryOutbox(), MemoryTopic(broker, "second"), "second")
    assert refused.value.exit_code == 4


@pytest.mark.parametrize("place", [0, 1, 4, 8])
def test_a_record_the_topic_can_never_take_is_settled_once_and_the_others_go_on(
    place: int, caplog: pytest.LogCaptureFixture
) -> None:
    outbox, broker = MemoryOutbox(), TopicBroker()
    publisher = started(outbox, MemoryTopic(broker))
    news = [violation(ClientKey("", "x" * 600_000 if number == place else "alice", "c")) for number in range(9)]
    publisher.write(publications(*news), FACTS, NOW.wall_ms)
    assert sequences(broker) == [number for number in range(9) if number != place]
    assert (broker.marker, len(outbox.rows)) == (Marker(9, outbox.table_id), 9)
    publisher.write(publications(violation()), FACTS, NOW.wall_ms)
    started(outbox, MemoryTopic(broker)).write(publications(violation(BOB)), FACTS, NOW.wall_ms)
    assert sequences(broker)[-2:] == [9, 10], "neither this process nor the next one tries it again"
    [line] = [line for line in caplog.messages if "not on the topic" in line]
    assert f"publish_seq {place}" in line
    assert len(line) < 500, "the name is cut short"


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
            publisher.write(publications(violation(), violation(BOB)), FACTS, NOW.wall_ms, {"query": batch_id})
    publisher = started(outbox, MemoryTopic(broker))
    assert sequences(broker) == [row["publish_seq"] for row in outbox.rows] == list(range(len(outbox.rows)))


def test_a_topic_that_is_ahead_of_the_outbox_is_gone_on_from_for_consumers_ignore_old_numbers() -> None:
    broker, whole, lost = TopicBroker(), MemoryOutbox(), MemoryOutbox()
    started(whole, MemoryTopic(broker)).write(publications(violation(), violation(BOB)), FACTS, NOW.wall_ms)
    lost.table_id = whole.table_id
    again = started(lost, MemoryTopic(broker))
    again.write(publications(violation()), FACTS, NOW.wall_ms)
    assert sequences(broker) == [0, 1, 2]
    assert [row["publish_seq"] for row in lost.rows] == [2]


@pytest.mark.parametrize(("rest_ms", "published"), [(3_599_000, [0]), (3_601_001, [])])
def test_after_a_long_rest_without_marker_and_records_nothing_old_is_published_again(
    rest_ms: int, published: list[int]
) -> None:
    outbox, broker = MemoryOutbox(), TopicBroker()
    started(outbox, MemoryTopic(broker)).write(publications(violation(throttle_time_ms=1_000)), FACTS, NOW.wall_ms)
    broker.marker, broker.records = None, []
    publisher = Publisher("kquota", "test", outbox, MemoryTopic(broker))
    publisher.take_over(0, Moment(NOW.wall_ms + rest_ms, NOW.steady_ms))
    assert sequences(broker) == published
    publisher.write(publications(violation(BOB)), FACTS, NOW.wall_ms)
    assert sequences(broker) == [*published, 1]
