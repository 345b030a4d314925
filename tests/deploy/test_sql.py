"""Every SQL text of deploy/ and of the pages, run by Spark on tables that a job has written, against the raw rows."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from pipeline.clock import wall_ms
from pipeline.stream.job_tables import WRITTEN_BY_THE_JOB
from pipeline.tables.quotas.history import versions
from pipeline.tables.throttles import running_throttles
from quota.engine import QuotaEngine
from quota.entity import Owners
from quota.snapshot import QuotaSnapshot
from schemas.throttle_record import verb, written_ms
from tests.deploy.sql_texts import QUOTA_HISTORY, VIEWS, panel_queries, statements, view_of, widget_queries
from tests.deploy.written_tables import SCHEMA, Row, Written, WrittenTables
from tests.pages.blocks import PAGES, blocks_of
from tests.pipeline.dashboard.stepped_tables import STEPS_MS, SteppedTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@contextmanager
def registered(spark: "SparkSession", schema: str, root: str, views: Collection[str] | None = None) -> Iterator[None]:
    """The tables, and these views over them (None = all), in a schema of their own."""
    variables = {"schema": schema, "tables_root": root}
    for name, value in variables.items():
        spark.conf.set(name, value)
    try:
        for path in (VIEWS, QUOTA_HISTORY):
            for statement in statements(path.read_text("utf-8")):
                if views is None or view_of(statement) in {None, *views}:
                    spark.sql(statement)
        spark.sql("USE default")
        yield
    finally:
        spark.sql(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        for name in variables:
            spark.conf.unset(name)


@pytest.fixture(scope="module")
def written(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    tables = WrittenTables(tmp_path_factory.mktemp("sql"), spark)
    with registered(spark, SCHEMA, tables.root):
        yield Written(spark, tables)


# What the views must say, by plain Python over the raw rows that delta-rs reads.

MINUTE_MS: Final = 60_000
USED: Final = ("produced_bytes", "fetched_bytes", "request_time_ns", "exempt_time_ns", "request_count")


def complete_usage(written: Written) -> list[Row]:
    """Raw usage of the minutes that are rolled up."""
    newest_ms = max(row["minute_start_ms"] for row in written.rows("usage_by_minute"))
    return [row for row in written.rows("usage") if row["sample_start_ms"] < newest_ms + MINUTE_MS]


def used(row: Row) -> Counter[str]:
    return Counter(
        produced_bytes=row["produced_bytes"] or 0,
        fetched_bytes=row["fetched_bytes"] or 0,
        request_time_ns=(row["io_time_ns"] or 0) + (row["network_time_ns"] or 0),
        exempt_time_ns=row["exempt_time_ns"] or 0,
        request_count=row["request_count"],
    )


def summed(rows: list[Row], key: Any) -> dict[Any, Counter[str]]:
    sums: dict[Any, Counter[str]] = defaultdict(Counter)
    for row in rows:
        sums[key(row)].update(used(row))
    return sums


def told(rows: list[Row], *keys: str) -> dict[Any, Counter[str]]:
    found = {tuple(row[key] for key in keys): Counter({name: row[name] for name in USED}) for row in rows}
    assert len(found) == len(rows), "no key twice"
    return found


def owners(written: Written) -> Owners:
    return Owners(written.rows("quotas"))


def day_of(at_ms: int) -> date:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date()


def set_of(rows: list[Row], names: tuple[str, ...]) -> set[Any]:
    return {tuple(row[name] for name in names) for row in rows}


FILES = (VIEWS, QUOTA_HISTORY)
VIEW_NAMES = [name for path in FILES for name in re.findall(r"CREATE OR REPLACE VIEW (\w+)", path.read_text("utf-8"))]
PANELS = panel_queries(SCHEMA, "1970-01-01 00:00:00", "2999-01-01 00:00:00")
WIDGETS = widget_queries()


def shows_something(rows: list[Row]) -> bool:
    return bool(rows) and all(any(row[name] is not None for row in rows) for name in rows[0])


# Columns that are null in every row of such tables: nothing in them has this value.
NEVER_HERE = {"quota_edits": {"consumer_byte_rate_before", "request_percentage_before"}}


@pytest.mark.parametrize("name", VIEW_NAMES)
def test_a_view_has_rows_and_a_comment(written: Written, name: str) -> None:
    rows = written.view(name)
    assert rows
    empty = {column for column in rows[0] if all(row[column] is None for row in rows)}
    assert empty <= NEVER_HERE.get(name, set())
    described = written.sql(f"DESCRIBE TABLE EXTENDED {name}")
    assert next(row["data_type"] for row in described if row["col_name"] == "Comment")


EXAMPLES = [
    statement
    for page in PAGES
    for block in blocks_of(page.read_text("utf-8"))
    if block.language == "sql"
    for statement in statements(block.text)
]


@pytest.mark.parametrize("query", [*PANELS.values(), *WIDGETS.values(), *EXAMPLES], ids=[*PANELS, *WIDGETS, *EXAMPLES])
def test_a_panel_a_widget_and_an_example_of_the_pages_show_something(written: Written, query: str) -> None:
    assert shows_something(written.answer(query))


# Usage, owners and bounds.


@pytest.mark.parametrize(
    ("view", "start", "span_ms"), [("minute", "minute_start_ms", MINUTE_MS), ("hour", "hour_start_ms", 60 * MINUTE_MS)]
)
def test_usage_by_minute_and_hour_is_the_sum_of_the_raw_usage(
    written: Written, view: str, start: str, span_ms: int
) -> None:
    owner_of = owners(written).of
    expected = summed(
        complete_usage(written),
        lambda row: (
            row["sample_start_ms"] // span_ms * span_ms,
            row["user"],
            row["client_id"],
            owner_of(row["user"], row["client_id"]),
        ),
    )
    rows = written.view(f"client_usage_by_{view}")
    assert told(rows, start, "user", "client_id", "owner") == expected
    assert len(expected) > 10


def test_chargeback_is_the_raw_usage_by_owner_and_period_of_the_calendar(written: Written) -> None:
    owner_of = owners(written).of
    names: dict[str, Callable[[date], str]] = {
        "day": lambda day: day.isoformat(),
        "week": lambda day: f"{day.isocalendar().year}-W{day.isocalendar().week:02}",
        "month": lambda day: f"{day:%Y-%m}",
    }
    rows = written.view("chargeback")
    for kind, name_of in names.items():
        expected = summed(
            complete_usage(written),
            lambda row, name_of=name_of: (
                name_of(day_of(row["sample_start_ms"])),
                owner_of(row["user"], row["client_id"]),
            ),
        )
        of_kind = [row for row in rows if row["period_kind"] == kind]
        assert told(of_kind, "period", "owner") == expected
        of_period: dict[Any, list[Row]] = defaultdict(list)
        for row in complete_usage(written):
            owner = owner_of(row["user"], row["client_id"])
            of_period[name_of(day_of(row["sample_start_ms"])), owner].append(row)
        for row in of_kind:
            raw = of_period[row["period"], row["owner"]]
            assert row["clients"] == len(set_of(raw, ("user", "client_id")))
            days = sorted(day_of(one["sample_start_ms"]) for one in raw)
            assert (row["first_day"], row["last_day"]) == (days[0], days[-1])
    assert {row["owner"] for row in rows} >= {"data-platform", "alice's team", "platform", "board"}
    assert len({row["period"] for row in rows if row["period_kind"] == "day"}) == 2


def test_the_share_of_held_minutes_is_of_the_minutes_that_were_observed(written: Written) -> None:
    minutes = {name: written.rows(name) for name in ("usage_by_minute", "throttle_by_minute")}
    observed: dict[date, set[int]] = defaultdict(set)
    held: dict[tuple[date, str, str], set[int]] = defaultdict(set)
    for row in (row for rows in minutes.values() for row in rows):
        observed[day_of(row["minute_start_ms"])].add(row["minute_start_ms"])
    for row in minutes["throttle_by_minute"]:
        if row["held_ms"]:
            held[day_of(row["minute_start_ms"]), row["user"], row["client_id"]].add(row["minute_start_ms"])
    found = {
        (date.fromisoformat(row["period"]), row["user"], row["client_id"]): (row["minutes_held"], row["share"])
        for row in written.view("throttled_share")
        if row["period_kind"] == "day" and row["minutes_held"]
    }
    assert found == {key: (len(some), len(some) / len(observed[key[0]])) for key, some in held.items()}
    assert max(share for _, share in found.values()) <= 1


def test_the_quota_that_holds_is_the_one_that_the_engine_finds(written: Written) -> None:
    known = sorted({(row["user"], row["client_id"]) for row in written.rows("usage_by_minute")})
    engine = QuotaEngine()
    engine.load_quotas(QuotaSnapshot.from_rows(written.rows("quotas"), version=1))
    users, clients = zip(*known, strict=True)
    resolved = engine.resolve(pa.table({"user": users, "client_id": clients})).to_pylist()
    enforced = [row for row in resolved if row["level"] is not None and row["mode"] != "shadow"]
    names = ("user", "client_id", "quota_type", "level", "mode", "bound", "sensor_user", "sensor_client_id")
    found = written.view("client_bounds")
    assert set_of(found, names) == set_of(enforced, names)
    assert {row["level"] for row in found} == {*range(1, 9)}
    assert "" in {row["client_id"] for row in found}


@pytest.mark.parametrize(
    ("sensor", "quota_type", "measure", "unit", "bound", "clients"),
    [
        (("alice", ""), "consumer_byte_rate", "fetched_bytes", 1.0, 50_000, 3),
        (("search", "indexer"), "request_percentage", "request_time_ns", 1e-7, 20, 1),
    ],
)
def test_use_against_bound_is_the_mean_of_a_minute_of_all_who_share_the_sensor(
    written: Written, sensor: tuple[str, str], quota_type: str, measure: str, unit: float, bound: float, clients: int
) -> None:
    names = ("sensor_user", "sensor_client_id", "quota_type")
    rows = [
        row for row in written.view("use_against_bound") if tuple(row[name] for name in names) == (*sensor, quota_type)
    ]
    sums: Counter[int] = Counter()
    for row in complete_usage(written):
        if row["user"] == sensor[0] and sensor[1] in {"", row["client_id"]}:
            sums[row["sample_start_ms"] // MINUTE_MS * MINUTE_MS] += used(row)[measure]
    found = {row["minute_start_ms"]: row for row in rows}
    assert {at_ms: row["used_per_second"] for at_ms, row in found.items()} == pytest.approx(
        {at_ms: total * unit / 60 for at_ms, total in sums.items()}
    )
    assert all(row["used_ratio"] == pytest.approx(row["used_per_second"] / bound) for row in found.values())
    assert max(row["clients"] for row in found.values()) == clients


# Throttles.


def test_seconds_held_by_day_are_those_between_the_records_of_each_client(written: Written) -> None:
    held_ms: Counter[Any] = Counter()
    minutes: dict[Any, set[int]] = defaultdict(set)
    last: dict[Any, Row] = {}
    for row in sorted(written.rows("throttle_events"), key=lambda row: row["publish_seq"]):
        client = row["user"], row["client_id"]
        before = last.get(client)
        if before is not None and before["action"] == "throttle":
            at_ms, end_ms = written_ms(before), min(before["throttled_until_ms"], written_ms(row))
            while at_ms < end_ms:
                next_ms = min((at_ms // MINUTE_MS + 1) * MINUTE_MS, end_ms)
                key = day_of(at_ms), *client, before["quota_type"]
                held_ms[key] += next_ms - at_ms
                minutes[key].add(at_ms // MINUTE_MS)
                at_ms = next_ms
        last[client] = row
    found, in_minutes = Counter[Any](), Counter[Any]()
    for row in written.view("throttled_by_day"):
        key = row["day"], row["user"], row["client_id"], row["quota_type"]
        found[key] += round(row["held_seconds"] * 1000)
        in_minutes[key] += row["minutes_held"]
    assert +found == +held_ms
    assert +in_minutes == Counter({key: len(of_key) for key, of_key in minutes.items()})
    assert len(held_ms) >= 4


def test_throttles_and_renewals_of_a_day_are_counted_by_what_each_record_did(written: Written) -> None:
    expected = Counter(
        (day_of(written_ms(row)), row["user"], row["client_id"], row["quota_type"], verb(row) == "throttle")
        for row in written.rows("throttle_events")
        if row["action"] == "throttle"
    )
    found: Counter[Any] = Counter()
    for row in written.view("throttled_by_day"):
        key = row["day"], row["user"], row["client_id"], row["quota_type"]
        found[*key, True] += row["throttles"]
        found[*key, False] += row["renewals"]
    assert +found == expected
    assert {is_new for *_, is_new in expected} == {True, False}


def test_who_is_throttled_now_is_what_the_command_line_lists(written: Written) -> None:
    before_ms = wall_ms()
    found = written.sql("SELECT * FROM throttled_now")
    after_ms = wall_ms()
    listed = running_throttles(written.tables.root, after_ms)
    names = ("user", "client_id", "quota_type", "throttled_until_ms", "decision_id")
    assert set_of(found, names) == set_of(listed, names)
    (hog,) = (row for row in found if row["user"] == "hog")
    assert hog["owner"] == "platform"
    assert re.fullmatch(r"used [\d,.]+ kB/s over [\d.]+ s, its quota is 120.0 kB/s: wait [\d,.]+ s", hog["reason"])
    assert after_ms >= hog["throttled_until_ms"] - hog["remaining_ms"] >= before_ms


def test_each_record_has_the_verb_of_the_log(written: Written) -> None:
    expected = {row["publish_seq"]: verb(row) for row in written.rows("throttle_events")}
    found = written.view("throttle_log")
    assert {row["publish_seq"]: row["verb"] for row in found} == expected
    assert set(expected.values()) == {"throttle", "extend", "renew", "release"}
    at_ms = {row["publish_seq"]: written_ms(row) for row in written.rows("throttle_events")}
    assert {row["publish_seq"]: row["written_at_ms"] for row in found} == at_ms
    assert all(row["written_at"].timestamp() * 1000 == row["written_at_ms"] for row in found)
    assert all(row["reason"] for row in found)


# Batches, dead letters, edits and freshness.


def test_dead_letters_are_counted_by_the_cause_that_the_jobs_reading_found(written: Written) -> None:
    expected = Counter(row["cause"] for row in written.rows("dead_letters"))
    rows = written.view("dead_letters_by_cause")
    assert {row["cause"]: row["letters"] for row in rows} == expected
    assert len(expected) >= 2
    assert sum(expected.values()) == 3
    assert any("is no text" in row["newest_value"] for row in rows)
    for row in rows:
        raw = [one for one in written.rows("dead_letters") if one["cause"] == row["cause"]]
        assert row["newest_at_ms"] == max(one["appended_at_ms"] for one in raw)
        newest = [one for one in raw if one["appended_at_ms"] == row["newest_at_ms"]]
        assert row["newest_place"] in {f"{one['topic']}:{one['partition']}:{one['offset']}" for one in newest}


def test_batches_tell_their_messages_their_age_and_when_their_records_were_stored(written: Written) -> None:
    rows = sorted(written.view("batch_facts"), key=lambda row: int(row["batch_id"]))
    assert len(rows) == len(written.rows("batches"))
    assert sum(row["messages"] or 0 for row in rows[1:]) == len(written.tables.job.messages) - 1
    assert {row["since_last_ms"] for row in rows[1:10]} == {5_000}
    stored: dict[int, list[int]] = defaultdict(list)
    for row in written.rows("throttle_events"):
        if row["due_ms"] is None and row["cause"] == "violation":
            stored[row["batch_id"]].append(written_ms(row))
    with_records = {row["batch_id"]: row for row in rows if row["records"]}
    assert {batch_id: row["records"] for batch_id, row in with_records.items()} == {
        batch_id: len(at_ms) for batch_id, at_ms in stored.items()
    }
    for batch_id, row in with_records.items():
        since_ms = [at_ms - row["processed_at_ms"] for at_ms in stored[batch_id]]
        found = row["collected_to_first_record_ms"], row["collected_to_last_record_ms"]
        assert found == (min(since_ms), max(since_ms))
    assert all(row["age_ms"] == row["processed_at_ms"] - row["evaluated_at_ms"] for row in rows)


def test_edits_are_those_of_the_history_of_the_command_line(written: Written) -> None:
    rows = written.view("quota_edits")
    expected = {
        (version.commit.version, change.user, change.client_id)
        for version in versions(written.tables.job.quota_table, 100)
        for change in version.changes
    }
    assert set_of(rows, ("version", "user", "client_id")) == expected
    (raised,) = (row for row in rows if row["reason"] == "month end")
    assert (raised["actor"], raised["change"]) == ("ada", "changed")
    assert (raised["producer_byte_rate_before"], raised["producer_byte_rate"]) == (100_000.0, 250_000.0)
    assert {row["change"] for row in rows} == {"added", "changed", "removed"}


def test_versions_and_freshness_are_those_of_the_tables(written: Written) -> None:
    batches = written.rows("batches")
    decided = Counter(row["quota_version"] for row in batches)
    assert {row["quota_version"]: row["batches"] for row in written.view("quota_versions")} == decided
    for row in written.view("quota_versions"):
        at_ms = [one["evaluated_at_ms"] for one in batches if one["quota_version"] == row["quota_version"]]
        assert (row["first_evaluated_at_ms"], row["last_evaluated_at_ms"]) == (min(at_ms), max(at_ms))
    fresh = {row["table_name"]: row for row in written.view("freshness")}
    assert fresh.keys() == set(WRITTEN_BY_THE_JOB)
    for name, row in fresh.items():
        of_row = written_ms if name == "throttle_events" else itemgetter(row["measured_by"])
        assert row["newest_ms"] == max(map(of_row, written.rows(name))), name
    assert fresh["batches"]["age_seconds"] < fresh["usage_by_minute"]["age_seconds"]


def test_after_a_clock_was_set_back_the_newest_is_what_came_since(spark: "SparkSession", tmp_path: Path) -> None:
    tables = SteppedTables(tmp_path, STEPS_MS[0])
    tables.live(12)
    with registered(spark, "kquota_stepped", tables.root, {"freshness", "batch_facts", "quota_versions"}):
        fresh = {row["table_name"]: row["newest_ms"] for row in spark.sql("TABLE kquota_stepped.freshness").collect()}
        facts = spark.sql("TABLE kquota_stepped.batch_facts").collect()
        (version,) = spark.sql("SELECT * FROM kquota_stepped.quota_versions").collect()
    newest_ms = tables.alone.now_ms - 1_000
    assert (fresh["batches"], fresh["usage"]) == (tables.now_ms, newest_ms)
    assert fresh["throttle_events"] <= tables.now_ms
    assert sorted({row["time_epoch"] for row in facts}) == [0, 1]
    assert all(row["since_last_ms"] is None or row["since_last_ms"] >= 0 for row in facts)
    assert (version["last_evaluated_at_ms"], version["batches"]) == (newest_ms, 42)


# What the panels of Grafana and the widgets of Databricks add up to.


Total = Callable[[Written], float]


def of_table(name: str, column: str) -> Total:
    """The sum of a column over all rows of a table."""
    return lambda written: sum(row[column] or 0 for row in written.rows(name))


def of_usage(measure: str) -> Total:
    """The sum of a measure over the usage that is rolled up."""
    return lambda written: sum(used(row)[measure] for row in complete_usage(written))


def begun(written: Written) -> float:
    """The number of throttles that began."""
    return sum(verb(row) == "throttle" for row in written.rows("throttle_events"))


def ages_ms(written: Written) -> float:
    """The ages of all micro-batches."""
    return float(sum(row["processed_at_ms"] - row["evaluated_at_ms"] for row in written.rows("batches")))


def count_of(name: str) -> Total:
    """The number of rows of a table."""
    return lambda written: len(written.rows(name))


HELD_MS: Final = of_table("throttle_by_minute", "held_ms")
TEXTS: Final = {**PANELS, **WIDGETS}


@pytest.mark.parametrize(
    ("name", "column", "unit", "total"),
    [
        ("Dead letters", "dead", 1, of_table("batches", "dead_count")),
        ("Held in all", "held_seconds", 1_000, HELD_MS),
        ("Time held, by client", "held_seconds", 1_000, HELD_MS),
        ("Throttles begun, by owner", "throttles", 1, begun),
        ("Produced, by owner", "bytes_per_second", 60, of_usage("produced_bytes")),
        ("Fetched, by owner", "bytes_per_second", 60, of_usage("fetched_bytes")),
        ("Chargeback by month", "produced_bytes", 1, of_usage("produced_bytes")),
        ("Chargeback by month", "fetched_bytes", 1, of_usage("fetched_bytes")),
        ("Chargeback by month", "request_seconds", 1e9, of_usage("request_time_ns")),
        ("Held by day", "held_seconds", 1_000, HELD_MS),
        ("Held by day", "throttles", 1, begun),
        ("Versions of the quotas that decided", "batches", 1, count_of("batches")),
        ("Dead letters, by cause", "letters", 1, count_of("dead_letters")),
        ("Events by micro-batch", "good_count", 1, of_table("batches", "good_count")),
        ("Events by micro-batch", "dead_count", 1, of_table("batches", "dead_count")),
        ("Age of usage when it is collected", "age_seconds", 1_000, ages_ms),
        ("held_chart", "sum(held_seconds)", 1_000, HELD_MS),
        ("held_clients", "sum(held_seconds)", 1_000, HELD_MS),
        ("produced", "sum(produced_bytes)", 1, of_usage("produced_bytes")),
        ("fetched", "sum(fetched_bytes)", 1, of_usage("fetched_bytes")),
        ("chargeback_table", "request_seconds", 1e9, of_usage("request_time_ns")),
        ("chargeback_table", "request_count", 1, of_usage("request_count")),
        ("events_chart", "sum(good_count)", 1, of_table("batches", "good_count")),
        ("dead_table", "letters", 1, count_of("dead_letters")),
        ("versions_table", "batches", 1, count_of("batches")),
    ],
)
def test_a_panel_or_widget_adds_up_to_the_raw_rows(
    written: Written, name: str, column: str, unit: float, total: Total
) -> None:
    expected = total(written)
    assert expected > 0
    assert sum(float(row[column] or 0) for row in written.answer(TEXTS[name])) * unit == pytest.approx(expected)


def test_how_many_are_throttled_is_how_many_rows_say_why(written: Written) -> None:
    counts = [*written.sql(TEXTS["Clients throttled now"]), *written.sql(TEXTS["throttled_count"])]
    told = {value for row in counts for value in row.values()}
    rows = {len(written.sql(TEXTS[name])) for name in ("Throttled now, and why", "throttled_table")}
    assert told == rows != {0}
    assert (len(counts), len(rows)) == (2, 1)


def test_the_mean_throttle_time_is_of_the_decisions_of_a_minute_and_sensor(written: Written) -> None:
    names = ("sensor_user", "sensor_client_id", "quota_type", "mode")
    expected: dict[Any, list[int]] = defaultdict(list)
    for row in written.rows("decisions"):
        if row["throttle_time_ms"]:
            minute_ms = row["evaluated_at_ms"] // MINUTE_MS * MINUTE_MS
            expected[minute_ms, *(row[name] for name in names)].append(row["throttle_time_ms"])
    found = written.view("throttle_time_by_minute")
    assert {(row["minute_start_ms"], *(row[name] for name in names)): row["decisions"] for row in found} == {
        key: len(times) for key, times in expected.items()
    }
    for row in found:
        times = expected[row["minute_start_ms"], *(row[name] for name in names)]
        assert row["throttle_time_max_ms"] == max(times)
        assert row["throttle_time_avg_ms"] == pytest.approx(sum(times) / len(times))
    assert len(found) > 1
