"""What a job tells Prometheus equals what it wrote: real batches, purgatory and tables, on a clock set by hand."""

import gc
import logging
from pathlib import Path
from typing import Any, Final, cast
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from prometheus_client import CollectorRegistry, generate_latest

from deploy.site.hook import with_tables
from pipeline.job.metrics import (
    IDLE_MS,
    MOST_CLIENTS,
    AppendClocks,
    JobMetrics,
    Listeners,
    ThrottledClients,
    both,
    tenant_series,
)
from pipeline.stream.job_tables import RatesTable
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.port import TableUnreadable, table_uri
from pipeline.tables.rates import Rates, read_rates
from pipeline.throttle.shapes import WRITTEN, table_of
from quota.current_rates import COLUMNS
from quota.tenants import Tenant
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


def rows_of(job: HandJob, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = job.rows(name).to_pylist()
    return rows


def test_batches_rows_and_steps_are_those_of_the_tables(job: HandJob, registry: CollectorRegistry) -> None:
    batches, now = rows_of(job, "batches"), job.clock.wall_ms / 1000
    assert value(registry, "batches_total") == len(batches) == 4
    assert value(registry, "events_total") == sum(row["good_count"] for row in batches) == 3
    assert value(registry, "dead_letters_total") == sum(row["dead_count"] for row in batches) == 2
    causes = [letter["cause"] for letter in rows_of(job, "dead_letters")]
    assert [value(registry, "events_rejected_total", reason=cause) for cause in causes] == [1, 1]
    for phase in ("collect", "append", "decide", "publish"):
        assert value(registry, "batch_duration_seconds_count", phase=phase) == 4
    assert value(registry, "last_batch_timestamp_seconds") == now
    assert value(registry, "config_version") == value(registry, "batch_config_version") == job.quotas.pin().version
    for table in ("batches", "dead_letters"):
        assert value(registry, "table_last_commit_timestamp_seconds", table=table) == now
    assert value(registry, "table_last_commit_timestamp_seconds", table="decisions") < now


def test_the_site_has_every_metric_of_the_job(job: HandJob, registry: CollectorRegistry) -> None:
    page = with_tables("<!-- metrics -->")
    missing = [metric.name for metric in registry.collect() if f"| `{metric.name}` |" not in page]
    assert missing == [], "name and help must be two texts in a row: see metrics_of in deploy/site/hook.py"


@pytest.mark.parametrize("back_ms", [20_000, 3_600_000])
def test_how_far_time_is_ahead_is_read_at_each_scrape(job: HandJob, registry: CollectorRegistry, back_ms: int) -> None:
    ahead_seconds = value(registry, "evaluated_ahead_seconds")
    assert (ahead_seconds <= 0, value(registry, "time_epoch")) == (True, 0)
    job.clock.set_wall(job.clock.wall_ms - back_ms)
    assert value(registry, "evaluated_ahead_seconds") == pytest.approx(ahead_seconds + back_ms / 1000)
    job.clock.advance(back_ms + 5_000)
    assert value(registry, "evaluated_ahead_seconds") == pytest.approx(ahead_seconds - 5)


def test_how_far_the_clock_of_a_broker_is_behind(job: HandJob, registry: CollectorRegistry) -> None:
    job.set_clocks(broker_by_ms=-15_000)
    for _ in range(6):
        job.send(b"[]")
        job.clock.advance(500)
        job.step()
    assert value(registry, "partition_clock_behind_seconds", partition="0") == pytest.approx(15, abs=0.5)


def test_records_are_counted_and_each_scrape_asks_the_purgatory(job: HandJob, registry: CollectorRegistry) -> None:
    records, rate = rows_of(job, "throttle_events"), "producer_byte_rate"
    kinds = ("throttle", "extend", "renew", "release")
    told = [value(registry, "throttle_records_total", kind=kind, quota_type=rate) for kind in kinds]
    assert (told[0], sum(told)) == (1, len(records))
    assert value(registry, "throttle_records_total", kind="throttle", quota_type="request_percentage") == 0
    throttles = [row["throttle_time_ms"] / 1000 for row in records if row["action"] == "throttle"]
    assert value(registry, "throttle_delay_seconds_count") == len(throttles) > 1
    assert value(registry, "throttle_delay_seconds_sum") == pytest.approx(sum(throttles))
    assert (value(registry, "purgatory_size"), value(registry, "purgatory_overdue_seconds")) == (1, 0)
    job.clock.advance((job.purgatory.next_due_ms() or 0) + 2_000 - job.clock.now().steady_ms)
    assert value(registry, "purgatory_overdue_seconds") == 2.0
    job.clock.advance(3_600_000)
    job.step()  # looks: nothing is owed
    job.step()  # releases
    assert value(registry, "purgatory_size") == 0
    looked = [row["lateness_ms"] for row in rows_of(job, "throttle_events") if row["lateness_ms"] is not None]
    assert value(registry, "purgatory_lateness_seconds_count") == len(looked) > 0
    assert value(registry, "purgatory_lateness_seconds_sum") == pytest.approx(sum(looked) / 1000)


def test_a_run_that_has_ended_is_not_kept_and_tells_nothing(job: HandJob, registry: CollectorRegistry) -> None:
    assert value(registry, "query_starts_total") == 1
    del job.gauges
    gc.collect()
    assert registry.get_sample_value("kquota_purgatory_size") is None
    job.start()
    assert value(registry, "query_starts_total") == 2
    assert value(registry, "purgatory_size") == 1, "taken up from the tables"


def test_a_throttled_client_has_series_until_it_is_idle(job: HandJob, registry: CollectorRegistry) -> None:
    labels = {"user": "alice", "client_id": "*", "broker_id": "", "quota_type": "producer_byte_rate"}
    assert value(registry, "client_throttles_total", **labels) == 1
    (row,) = job.rows("rates").filter(pc.field("own_rate") > 0).to_pylist()
    assert value(registry, "client_share", **labels, tenant="") == row["share"] == row["observed"] / row["bound"] > 1
    rows = rows_of(job, "throttle_events")
    held_seconds = (job.clock.wall_ms - min(row["throttled_until_ms"] - row["throttle_time_ms"] for row in rows)) / 1000
    assert value(registry, "client_held_seconds_total", **labels) == held_seconds > 0
    end_ms = max(row["throttled_until_ms"] for row in rows)
    job.clock.advance(end_ms + IDLE_MS - job.clock.wall_ms)
    assert value(registry, "client_throttles_total", **labels) == 1
    job.clock.advance(1)
    assert b"alice" not in generate_latest(registry)


def throttled(name: str, client_id: str | None = "", quota_type: str = "request_percentage") -> pa.Table:
    """The record that begins a throttle of a second."""
    who = {"broker_id": "", "user": name, "client_id": pa.array([client_id], pa.string()), "quota_type": quota_type}
    return table_of(WRITTEN, 1, {**who, "action": "throttle", "cause": "violation", "throttle_time_ms": 1_000})


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


def rates_row(user: str, observed: float, **columns: Any) -> dict[str, Any]:
    row = {"broker_id": "", "user": user, "quota_type": "producer_byte_rate", "observed": observed, "clients": 1}
    return {**row, "bound": 1e6, "share": observed / 1e6, "mode": "enforce", "tenant": "team-a", **columns}


def test_a_tenant_has_its_use_its_bound_and_its_level() -> None:
    tenants = [Tenant(name, (name,), (), (10e6, None, None), (1e6, None, None)) for name in ("team-a", "team-b")]
    tenants.append(Tenant("team-c", ("sue",), (), (10e6, None, None), (1e6, None, None), mode="shadow"))
    rows = [
        rates_row("alice", 4e6, tenant_level=3.6),
        rates_row("bob", 1e6, tenant_level=3.6),
        rates_row("bob", 1e6, clients=None, own_rate=1e6, client_id="x"),
        rates_row("eve", 2e6, tenant="team-b"),
        rates_row("eve", 9e6, tenant="team-b", mode="shadow"),
        rates_row("sue", 9e6, tenant="team-c", mode="shadow"),
        rates_row("mallory", 9e6, tenant=None),
        rates_row("old", 9e6, tenant="gone"),
    ]
    rates = pa.Table.from_pylist(rows, COLUMNS)
    found = {
        (one.name.removeprefix("kquota_tenant_"), *one.labels.values()): one.value
        for metric in tenant_series(rates, tenants)
        for one in metric.samples
    }
    assert found == {
        ("rate", "team-a", "", "producer_byte_rate"): 5e6,
        ("bound", "team-a", "", "producer_byte_rate"): 10e6,
        ("level", "team-a", "", "producer_byte_rate"): 3.6,
        ("rate", "team-b", "", "producer_byte_rate"): 2e6,
        ("bound", "team-b", "", "producer_byte_rate"): 10e6,
    }
    assert [metric.samples for metric in tenant_series(None, tenants)] == [[], [], []]


def test_a_held_member_has_the_label_of_its_tenant() -> None:
    clients = ThrottledClients()
    clients.announce(throttled("bob", None, "producer_byte_rate"), 0)
    rates = pa.Table.from_pylist([rates_row("bob", 2e6)], COLUMNS)
    shares = [one for metric in clients.read(500, rates) for one in metric.samples if one.name == "kquota_client_share"]
    assert [(one.labels["user"], one.labels["tenant"], one.value) for one in shares] == [("bob", "team-a", 2.0)]


def test_of_too_many_clients_those_held_or_throttled_most_keep_their_series() -> None:
    clients, names = ThrottledClients(), [f"user {number}" for number in range(MOST_CLIENTS)]
    for again in (names, names[1:]):
        clients.announce(pa.concat_tables(map(throttled, again)), 0)
    clients.announce(throttled("while all are held"), 999)
    assert (len(listed(clients, 999)), listed(clients, 999)[""]) == (MOST_CLIENTS + 1, 1)
    clients.announce(throttled("when none is held"), 1_000)
    found = listed(clients, 1_000)
    assert (found["when none is held"], found["user 1"], found.get("user 0")) == (1, 2, None)
    assert (len(found), found[""]) == (MOST_CLIENTS + 1, 2)


def test_of_two_who_listen_both_hear_everything() -> None:
    kinds = ("announce", "report", "committed", "began")
    heard = [{kind: Mock() for kind in kinds} for _ in range(2)]
    together = both(*(Listeners(**one) for one in heard))
    together.announce(cast(Any, []), 1)
    for kind in kinds[1:]:
        getattr(together, kind)(None)
    assert [one[kind].call_count for one in heard for kind in kinds] == [1] * 8


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
def test_a_clock_is_behind_by_its_append_times(intervals_ms: list[int], behind_ms: dict[int, int]) -> None:
    assert clocks_after(intervals_ms, behind_ms).behind_ms() == behind_ms


def test_a_backlog_a_few_batches_and_one_late_message_show_no_fault() -> None:
    assert clocks_after([500] * 9, {0: 0}, has_read_all=False, age_ms=60_000).behind_ms() == {}
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


@pytest.mark.parametrize(
    ("behind_ms", "lines", "which"),
    [
        ({0: 0, 1: 2_000}, 0, ""),
        ({0: 0, 1: 2_001}, 2, "partitions 1 "),
        ({0: 0, 1: 15_000, 2: 14_800}, 2, "partitions 1, 2 "),
        ({0: 14_000, 1: 15_000}, 2, "all partitions "),
    ],
)
def test_what_is_behind_by_more_than_the_tolerance_is_logged_once_a_minute(
    behind_ms: dict[int, int], lines: int, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        clocks_after([1_000] * 120, behind_ms)
    assert [which in line for line in messages_of(caplog, "pipeline.job.metrics")] == [True] * lines


# The table `rates`, which the job replaces: the engine's own figures; a failure does no harm.


def in_order(rows: pa.Table) -> pa.Table:
    """A table is read in none."""
    return rows.sort_by([(name, "ascending") for name in ("user", "quota_type", "client_id", "own_rate")])


def stored(job: HandJob) -> pa.Table:
    return in_order(job.rows("rates"))


def uri_of(job: HandJob) -> str:
    return table_uri(job.settings.tables.root, "rates")


def facts(job: HandJob) -> Any:
    return read_rates(job.settings.tables.root, lambda rates: rates.facts)


def test_what_is_stored_is_what_the_engine_sees_at_the_newest_batch(job: HandJob) -> None:
    seen, found = job.decider.current_rates(job.purgatory.held_until())
    rows = stored(job)
    assert rows.select(COLUMNS.names).to_pylist() == in_order(found.rows).to_pylist() != []
    assert {*rows["as_of_ms"].to_pylist()} == {seen.evaluated_at_ms} == {int(facts(job)["as_of_ms"])}
    assert (int(facts(job)["batch_id"]), facts(job)["active_clients"]) == (seen.batch_id, "1")
    clients = pa.table({"user": ["alice"], "client_id": ["etl"]})
    owed = job.decider._engine.evaluate(clients, seen.evaluated_at_ms).to_pylist()[0]
    assert {(row["observed"], row["bound"]) for row in rows.to_pylist()} == {(owed["observed"], owed["bound"])}
    held = job.purgatory.held_until()["until_ms"].to_pylist()
    assert {row["held_until_ms"] for row in rows.to_pylist()} == {*held}


def test_nothing_new_replaces_nothing_and_without_rows_there_is_an_instant(job: HandJob) -> None:
    job.clock.advance(60_000)
    job.purgatory.tick()
    job.rates.step()
    version = DeltaTable(uri_of(job)).version()
    job.rates.step()
    assert DeltaTable(uri_of(job)).version() == version
    job.send(b'{"event_time_ms":%d,"user":"bob","client_id":""}' % job.clock.wall_ms)
    job.step()
    assert stored(job).num_rows == 0
    assert int(facts(job)["as_of_ms"]) == job.decider.last.evaluated_at_ms


def test_a_driver_that_was_fenced_replaces_nothing_and_goes_on(job: HandJob) -> None:
    before = stored(job)
    DeltaRsWriter(uri_of(job), "hand").raise_epoch(99)
    job.rates._written = None
    assert job.rates.step() > 0
    assert (job.rates.failures, stored(job)) == (1, before)


def test_replaced_files_are_gone_after_two_minutes(job: HandJob, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned: list[str] = []
    monkeypatch.setattr("pipeline.stream.job_tables.clean", cleaned.append)
    for after_ms in (59_000, 1_000, 59_999, 1):
        job.clock.advance(after_ms)
        job.rates.step()
    assert cleaned == [uri_of(job)] * 2


def test_a_reader_that_loses_a_file_opens_the_table_again_twice(job: HandJob) -> None:
    def instant_read(lost: int) -> int:
        failures = [TableUnreadable("rates", "gone", is_file_missing=True)] * lost

        def read(rates: Rates) -> int:
            if failures:
                raise failures.pop()
            return rates.as_of_ms

        return read_rates(job.settings.tables.root, read)

    for lost in (0, 2):
        assert instant_read(lost) == job.decider.last.evaluated_at_ms
    with pytest.raises(TableUnreadable):
        instant_read(3)


def test_what_it_takes_is_a_twentieth_of_the_time_at_most(job: HandJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(held: pa.Table) -> Any:
        job.clock.advance(500)
        return job.decider.__class__.current_rates(job.decider, held)

    monkeypatch.setattr(job.decider, "current_rates", slow, raising=False)
    job.rates._written = None
    assert job.rates.step() == 9.5
    writer, held_until = job.tables.writers["rates"], job.purgatory.held_until
    in_store = RatesTable(writer, "s3://lake/rates", "test", job.decider, held_until, job.clock)
    job.clock.advance(1)
    assert in_store.step() == 10.0
