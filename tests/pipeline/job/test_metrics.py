"""What a job tells Prometheus equals what it wrote: real batches, purgatory and tables, on a clock set by hand."""

import gc
import logging
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pipeline.job.metrics import (
    IDLE_MS,
    MOST_CLIENTS,
    AppendClocks,
    JobMetrics,
    Listeners,
    ThrottledClients,
    both,
    clocks_text,
    job_metrics,
)
from pipeline.settings.model import MetricsSettings, Settings
from pipeline.tables.port import table_uri
from pipeline.tables.queries import read_table
from pipeline.throttle.shapes import WRITTEN, table_of
from tests.faults.hand_job import HandJob
from tests.log_messages import messages_of
from tests.pipeline.demo.played import throttle_one

RATES = {"producer_byte_rate": 10_000.0}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def job(tmp_path: Path, registry: CollectorRegistry) -> HandJob:
    """A client was throttled, extended and, after a long silence, released; two messages were refused."""
    job = HandJob(tmp_path, RATES)
    job.listeners = JobMetrics(registry, job.clock).listeners
    job.start()
    throttle_one(job)
    job.send(b"no json", b'{"event_time_ms":1}')
    job.step()
    return job


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    found = registry.get_sample_value(f"kquota_{name}", labels)
    assert found is not None, f"{name} is not told"
    return found


def test_batches_rows_and_steps_are_those_of_the_table(job: HandJob, registry: CollectorRegistry) -> None:
    batches = read_table(table_uri(job.settings.tables.root, "batches")).to_pylist()
    assert value(registry, "batches_total") == len(batches) == 4
    assert value(registry, "events_total") == sum(row["good_count"] for row in batches) == 3
    assert value(registry, "dead_letters_total") == sum(row["dead_count"] for row in batches) == 2
    for phase in ("collect", "append", "decide", "publish"):
        assert value(registry, "batch_duration_seconds_count", phase=phase) == 4
    assert value(registry, "last_batch_timestamp_seconds") == job.clock.wall_ms / 1000
    assert value(registry, "config_version") == value(registry, "batch_config_version") == job.quotas.pin().version


@pytest.mark.parametrize("back_ms", [20_000, 3_600_000])
def test_how_far_its_time_is_ahead_of_the_wall_clock_is_read_at_each_scrape(
    job: HandJob, registry: CollectorRegistry, back_ms: int
) -> None:
    ahead_seconds = value(registry, "evaluated_ahead_seconds")
    assert (ahead_seconds <= 0, value(registry, "time_epoch")) == (True, 0)
    job.clock.set_wall(job.clock.wall_ms - back_ms)
    assert value(registry, "evaluated_ahead_seconds") == pytest.approx(ahead_seconds + back_ms / 1000)
    job.clock.advance(back_ms + 5_000)
    assert value(registry, "evaluated_ahead_seconds") == pytest.approx(ahead_seconds - 5)


def test_a_partition_with_a_broker_whose_clock_is_behind_is_told(job: HandJob, registry: CollectorRegistry) -> None:
    job.set_clocks(broker_by_ms=-15_000)
    for _ in range(6):
        job.send(b"[]")
        job.clock.advance(500)
        job.step()
    assert value(registry, "partition_clock_behind_seconds", partition="0") == pytest.approx(15, abs=0.5)


def test_dead_letters_are_told_by_their_cause(job: HandJob, registry: CollectorRegistry) -> None:
    letters = read_table(table_uri(job.settings.tables.root, "dead_letters")).to_pylist()
    causes = [letter["cause"] for letter in letters]
    assert [value(registry, "events_rejected_total", reason=cause) for cause in causes] == [1, 1]


def test_records_are_counted_by_the_words_of_the_log_from_zero_on(job: HandJob, registry: CollectorRegistry) -> None:
    records = read_table(table_uri(job.settings.tables.root, "throttle_events")).to_pylist()
    rate = "producer_byte_rate"
    told = {
        kind: value(registry, "throttle_records_total", kind=kind, quota_type=rate)
        for kind in ("throttle", "extend", "renew", "release")
    }
    assert told["throttle"] == 1
    assert sum(told.values()) == len(records) > 1
    assert value(registry, "throttle_records_total", kind="throttle", quota_type="request_percentage") == 0
    throttles = [row["throttle_time_ms"] / 1000 for row in records if row["action"] == "throttle"]
    assert value(registry, "throttle_delay_seconds_count") == len(throttles)
    assert value(registry, "throttle_delay_seconds_sum") == pytest.approx(sum(throttles))


def test_the_purgatory_is_asked_at_each_scrape(job: HandJob, registry: CollectorRegistry) -> None:
    assert (value(registry, "purgatory_size"), value(registry, "purgatory_overdue_seconds")) == (1, 0)
    due_ms = job.purgatory.next_due_ms()
    assert due_ms is not None
    job.clock.advance(due_ms + 2_000 - job.clock.now().steady_ms)
    assert value(registry, "purgatory_overdue_seconds") == 2.0
    job.clock.advance(3_600_000)
    job.step()  # looks: nothing is owed
    job.step()  # releases
    assert value(registry, "purgatory_size") == 0
    looked = [
        row["lateness_ms"]
        for row in read_table(table_uri(job.settings.tables.root, "throttle_events")).to_pylist()
        if row["lateness_ms"] is not None
    ]
    assert value(registry, "purgatory_lateness_seconds_count") == len(looked) > 0
    assert value(registry, "purgatory_lateness_seconds_sum") == pytest.approx(sum(looked) / 1000)


def test_each_table_tells_when_rows_were_last_written_to_it(job: HandJob, registry: CollectorRegistry) -> None:
    now = job.clock.wall_ms / 1000
    for table in ("batches", "dead_letters"):
        assert value(registry, "table_last_commit_timestamp_seconds", table=table) == now
    assert value(registry, "table_last_commit_timestamp_seconds", table="decisions") < now


def test_a_run_that_has_ended_is_not_kept_and_tells_nothing(job: HandJob, registry: CollectorRegistry) -> None:
    assert value(registry, "query_starts_total") == 1
    del job.gauges
    gc.collect()
    assert registry.get_sample_value("kquota_purgatory_size") is None
    job.start()
    assert value(registry, "query_starts_total") == 2
    assert value(registry, "purgatory_size") == 1, "taken up from the tables"


def test_a_throttled_client_has_series_until_it_has_been_idle_for_a_quarter_of_an_hour(
    job: HandJob, registry: CollectorRegistry
) -> None:
    labels = {"user": "alice", "client_id": "*", "broker_id": "", "quota_type": "producer_byte_rate"}
    assert value(registry, "client_throttles_total", **labels) == 1
    (row,) = read_table(table_uri(job.settings.tables.root, "rates")).filter(pc.field("own_rate") > 0).to_pylist()
    assert value(registry, "client_share", **labels) == row["share"] == row["observed"] / row["bound"] > 1
    rows = read_table(table_uri(job.settings.tables.root, "throttle_events")).to_pylist()
    held_seconds = (job.clock.wall_ms - min(row["throttled_until_ms"] - row["throttle_time_ms"] for row in rows)) / 1000
    assert value(registry, "client_held_seconds_total", **labels) == held_seconds > 0
    end_ms = max(row["throttled_until_ms"] for row in rows)
    job.clock.advance(end_ms + IDLE_MS - job.clock.wall_ms)
    assert value(registry, "client_throttles_total", **labels) == 1
    job.clock.advance(1)
    assert b"alice" not in generate_latest(registry)


def throttled(name: str, client_id: str | None = "", quota_type: str = "request_percentage") -> pa.Table:
    """The record that begins a throttle of a second."""
    who = {"client_id": pa.array([client_id], pa.string()), "quota_type": quota_type}
    texts = {"broker_id": "", "user": name, **who}
    return table_of(
        WRITTEN,
        1,
        {**texts, "action": "throttle", "cause": "violation", "throttle_time_ms": 1_000},
    )


def listed(clients: ThrottledClients, now_ms: int) -> dict[str, float]:
    """Throttles by user; "" for those of clients without series."""
    samples = [sample for metric in clients.read(now_ms, None) for sample in metric.samples]
    return {one.labels.get("user", ""): one.value for one in samples if one.name.endswith("_throttles_total")}


def test_a_user_has_the_client_id_of_all_and_a_client_of_that_name_has_no_series() -> None:
    clients = ThrottledClients()
    for client_id, quota_type in ((None, "a"), (None, "b"), ("", "a"), ("*", "a"), (None, "a")):
        clients.announce(throttled("alice", client_id, quota_type), 0)
    samples = [sample for metric in clients.read(500, None) for sample in metric.samples]
    series = {(*one.labels.values(), one.name): one.value for one in samples}
    throttles, held = "kquota_client_throttles_total", "kquota_client_held_seconds_total"
    assert series == {
        ("", "alice", "*", "a", throttles): 2,
        ("", "alice", "*", "b", throttles): 1,
        ("", "alice", "", "a", throttles): 1,
        ("kquota_unlisted_client_throttles_total",): 1,
        ("", "alice", "*", "a", held): 0.5,
        ("", "alice", "*", "b", held): 0.5,
        ("", "alice", "", "a", held): 0.5,
    }


def test_where_there_are_too_many_the_clients_that_are_held_or_throttled_most_keep_their_series() -> None:
    clients, names = ThrottledClients(), [f"user {number}" for number in range(MOST_CLIENTS)]
    for again in (names, names[1:]):
        clients.announce(pa.concat_tables(map(throttled, again)), 0)
    clients.announce(throttled("while all are held"), 999)
    assert (len(listed(clients, 999)), listed(clients, 999)[""]) == (MOST_CLIENTS + 1, 1)
    clients.announce(throttled("when none is held"), 1_000)
    found = listed(clients, 1_000)
    assert (found["when none is held"], found["user 1"], found.get("user 0")) == (1, 2, None)
    assert (len(found), found[""]) == (MOST_CLIENTS + 1, 2)


def test_only_a_job_with_a_port_fills_a_registry() -> None:
    silent = Listeners(lambda _records, _version: None, lambda _report: None)
    assert job_metrics(Settings(), silent)[0] is silent
    listeners, registry = job_metrics(Settings(metrics=MetricsSettings(port=0)), silent)
    assert listeners is not silent
    assert registry.get_sample_value("kquota_batches_total") == 0


def test_of_two_who_listen_both_hear_everything() -> None:
    heard: list[str] = []

    def listener(name: str) -> Any:
        def hear(what: str) -> Any:
            return lambda *_: heard.append(f"{name} {what}")

        return Listeners(hear("announce"), hear("report"), hear("committed"), hear("began"))

    together: Any = both(listener("a"), listener("b"))
    together.announce([], 1)
    together.report(None)
    together.committed("usage")
    together.began(None)
    assert heard == [f"{name} {what}" for what in ("announce", "report", "committed", "began") for name in "ab"]


# A broker whose clock is behind is known by the append times of its partitions; one that is right never is.


BEGIN_MS: Final = 1_700_000_000_000


def clocks_after(
    intervals_ms: list[int], behind_ms: dict[int, int], *, has_read_all: bool = True, age_ms: int = 0
) -> AppendClocks:
    """Batches that begin at such intervals. Each has a message of each partition, appended right after the one before.

    * `age_ms`: How long before that it was appended in truth, if the batch before has not read all there was.
    """
    clocks, began_ms = AppendClocks(tolerance_ms=2_000), BEGIN_MS
    for interval_ms in intervals_ms:
        times_ms = {partition: began_ms - age_ms - ms for partition, ms in behind_ms.items()}
        began_ms += interval_ms
        clocks.note(began_ms, times_ms, has_read_all)
    return clocks


@pytest.mark.parametrize("intervals_ms", [[500] * 9, [60_000] * 9, [500, 5_000, 90_000, 60, 700, 40_000, 500]])
@pytest.mark.parametrize("behind_ms", [{0: 0, 1: 0}, {0: 0, 1: 15_000}, {0: 700, 1: 1_999}])
def test_a_clock_is_behind_by_what_its_append_times_are_before_the_batch_before(
    intervals_ms: list[int], behind_ms: dict[int, int]
) -> None:
    assert clocks_after(intervals_ms, behind_ms).behind_ms() == behind_ms


def test_of_a_backlog_nothing_is_known() -> None:
    assert clocks_after([500] * 9, {0: 0}, has_read_all=False, age_ms=60_000).behind_ms() == {}


def test_a_few_batches_are_not_enough_and_a_message_that_was_readable_late_is_no_fault() -> None:
    assert clocks_after([500] * 5, {0: 15_000}).behind_ms() == {}
    clocks = clocks_after([500] * 9, {0: 0})
    clocks.note(BEGIN_MS + 5_000, {0: BEGIN_MS - 20_000}, has_read_all=True)
    assert clocks.behind_ms() == {0: 0}


def test_a_partition_without_messages_is_forgotten_after_5_minutes() -> None:
    clocks = clocks_after([500] * 9, {0: 15_000, 1: 0})
    clocks.note(BEGIN_MS + 4_500 + 300_000, {1: BEGIN_MS + 4_500 + 300_000}, has_read_all=True)
    assert set(clocks.behind_ms()) == {0, 1}
    clocks.note(BEGIN_MS + 4_501 + 300_000, {1: BEGIN_MS + 4_501 + 300_000}, has_read_all=True)
    assert set(clocks.behind_ms()) == {1}


@pytest.mark.parametrize(("behind_ms", "lines"), [({0: 0, 1: 2_000}, 0), ({0: 0, 1: 2_001}, 2)])
def test_what_is_behind_by_more_than_the_tolerance_is_logged_once_a_minute(
    behind_ms: dict[int, int], lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        clocks_after([1_000] * 120, behind_ms)
    assert len(messages_of(caplog, "pipeline.job.metrics")) == lines


@pytest.mark.parametrize(
    ("behind_ms", "text"),
    [
        ({0: 0, 1: 15_000, 2: 14_800}, "partitions 1, 2 are up to 15.0 s behind this machine's"),
        ({0: 0, 1: 15_000}, "Fix: set the clock of the brokers that lead these partitions"),
        ({0: 14_000, 1: 15_000}, "all partitions are up to 15.0 s behind this machine's clock"),
    ],
)
def test_the_line_names_the_partitions_and_the_clock_to_set(behind_ms: dict[int, int], text: str) -> None:
    assert text in clocks_text(behind_ms, 2_000)
