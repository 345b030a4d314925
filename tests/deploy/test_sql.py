"""Every SQL text of deploy/, run by Spark on tables that the job's own engine, writers and roll-ups have written.

Numbers are compared with plain Python over the raw rows, read by delta-rs.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from pipeline.clock import wall_ms
from pipeline.tables.quotas.history import versions
from pipeline.tables.throttles.listed import running_throttles
from quota.engine import QuotaEngine
from quota.owners import Owners
from quota.snapshot import QuotaSnapshot
from schemas.throttle_event_row import verb, written_ms
from tests.deploy.sql_texts import QUOTA_HISTORY, VIEWS, panel_queries, statements, widget_queries
from tests.deploy.written_tables import Row, Written, WrittenTables
from tests.pages.blocks import PAGES, blocks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "kquota_views"
DAY_MS = 86_400_000
MINUTE_MS = 60_000
FILES = (VIEWS, QUOTA_HISTORY)
VIEW_NAMES = [name for path in FILES for name in re.findall(r"CREATE OR REPLACE VIEW (\w+)", path.read_text("utf-8"))]
PANELS = panel_queries(SCHEMA, "1970-01-01 00:00:00", "2999-01-01 00:00:00")
WIDGETS = widget_queries()
USED = ("produced_bytes", "fetched_bytes", "request_time_ns", "request_count")


@pytest.fixture(scope="module")
def written(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    tables = WrittenTables(tmp_path_factory.mktemp("sql"), spark)
    spark.conf.set("schema", SCHEMA)
    spark.conf.set("tables_root", tables.root)
    try:
        for path in FILES:
            for statement in statements(path.read_text("utf-8")):
                spark.sql(statement)
        yield Written(spark, tables)
    finally:
        spark.sql("USE default")
        spark.sql(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        spark.conf.unset("schema")
        spark.conf.unset("tables_root")


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


@pytest.mark.parametrize("title", PANELS)
def test_a_panel_of_grafana_shows_something(written: Written, title: str) -> None:
    assert shows_something(written.sql(PANELS[title]))


@pytest.mark.parametrize("name", WIDGETS)
def test_a_widget_of_databricks_shows_something(written: Written, name: str) -> None:
    assert shows_something(written.sql(WIDGETS[name]))


EXAMPLES = [
    statement
    for page in PAGES
    for block in blocks_of(page.read_text("utf-8"))
    if block.language == "sql"
    for statement in statements(block.text)
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_pages_shows_something(written: Written, example: str) -> None:
    assert shows_something(written.sql(example))


def complete_usage(written: Written) -> list[Row]:
    """Raw usage of the minutes that are rolled up."""
    newest_ms = max(row["minute_start_ms"] for row in written.rows("usage_by_minute"))
    return [row for row in written.rows("usage") if row["sample_start_ms"] < newest_ms + MINUTE_MS]


def used(row: Row) -> Counter[str]:
    return Counter(
        produced_bytes=row["produced_bytes"] or 0,
        fetched_bytes=row["fetched_bytes"] or 0,
        request_time_ns=(row["io_time_ns"] or 0) + (row["network_time_ns"] or 0),
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
    names = {
        "day": lambda day: day.isoformat(),
        "week": lambda day: f"{day.isocalendar().year}-W{day.isocalendar().week:02}",
        "month": lambda day: f"{day:%Y-%m}",
    }
    rows = written.view("chargeback")
    for kind, name_of in names.items():
        expected = summed(
            complete_usage(written),
            lambda row, name_of=name_of: (
                name_of(_day(row["sample_start_ms"])),
                owner_of(row["user"], row["client_id"]),
            ),
        )
        of_kind = [row for row in rows if row["period_kind"] == kind]
        assert told(of_kind, "period", "owner") == expected
    assert {row["owner"] for row in rows} >= {"data-platform", "alice's team", "platform", "board"}
    assert len({row["period"] for row in rows if row["period_kind"] == "day"}) == 2


def _day(at_ms: int) -> date:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date()


def test_seconds_held_by_day_are_those_between_the_records_of_each_client(written: Written) -> None:
    held_ms: Counter[Any] = Counter()
    last: dict[Any, Row] = {}
    for row in sorted(written.rows("throttle_events"), key=lambda row: row["publish_seq"]):
        client = row["user"], row["client_id"]
        before = last.get(client)
        if before is not None and before["action"] == "throttle":
            at_ms, end_ms = written_ms(before), min(before["throttled_until_ms"], written_ms(row))
            while at_ms < end_ms:
                next_ms = min((at_ms // DAY_MS + 1) * DAY_MS, end_ms)
                held_ms[_day(at_ms), *client, before["quota_type"]] += next_ms - at_ms
                at_ms = next_ms
        last[client] = row
    rows = written.view("throttled_by_day")
    found: Counter[Any] = Counter()
    for row in rows:
        found[row["day"], row["user"], row["client_id"], row["quota_type"]] += round(row["held_seconds"] * 1000)
    assert +found == +held_ms
    assert len(held_ms) >= 4


def test_the_quota_that_holds_is_the_one_that_the_engine_finds(written: Written) -> None:
    known = sorted({(row["user"], row["client_id"]) for row in written.rows("usage_by_minute")})
    engine = QuotaEngine()
    engine.load_quotas(QuotaSnapshot.from_rows(written.rows("quotas"), version=1))
    users, clients = zip(*known, strict=True)
    resolved = engine.resolve(pa.table({"user": users, "client_id": clients})).to_pylist()
    enforced = [row for row in resolved if row["level"] is not None and row["mode"] != "shadow"]
    names = ("user", "client_id", "quota_type", "level", "mode", "bound", "sensor_user", "sensor_client_id")
    found = written.view("client_bounds")
    assert _set_of(found, names) == _set_of(enforced, names)
    assert {row["level"] for row in found} == {*range(1, 9)}
    assert "" in {row["client_id"] for row in found}


def _set_of(rows: list[Row], names: tuple[str, ...]) -> set[Any]:
    return {tuple(row[name] for name in names) for row in rows}


def test_use_against_bound_is_the_mean_of_a_minute_of_all_who_share_the_sensor(written: Written) -> None:
    of_sensor = ("alice", "")
    rows = [
        row for row in written.view("use_against_bound") if (row["sensor_user"], row["sensor_client_id"]) == of_sensor
    ]
    sums: Counter[int] = Counter()
    for row in complete_usage(written):
        if row["user"] == "alice":
            sums[row["sample_start_ms"] // MINUTE_MS * MINUTE_MS] += row["fetched_bytes"] or 0
    found = {row["minute_start_ms"]: row for row in rows if row["quota_type"] == "consumer_byte_rate"}
    assert {at_ms: row["used_per_second"] for at_ms, row in found.items()} == pytest.approx(
        {at_ms: total / 60 for at_ms, total in sums.items()}
    )
    assert all(row["used_ratio"] == pytest.approx(row["used_per_second"] / 50_000) for row in found.values())
    assert max(row["clients"] for row in found.values()) >= 2


def test_who_is_throttled_now_is_what_the_command_line_lists(written: Written) -> None:
    before_ms = wall_ms()
    found = written.sql("SELECT * FROM throttled_now")
    after_ms = wall_ms()
    listed = running_throttles(written.tables.root, after_ms)
    names = ("user", "client_id", "quota_type", "throttled_until_ms", "decision_id")
    assert _set_of(found, names) == _set_of(listed, names)
    (hog,) = (row for row in found if row["user"] == "hog")
    assert hog["owner"] == "platform"
    assert re.fullmatch(r"used [\d,.]+ kB/s over [\d.]+ s, its quota is 120.0 kB/s: wait [\d,.]+ s", hog["reason"])
    assert after_ms >= hog["throttled_until_ms"] - hog["remaining_ms"] >= before_ms


def test_each_record_has_the_verb_of_the_log(written: Written) -> None:
    expected = {row["publish_seq"]: verb(row) for row in written.rows("throttle_events")}
    found = written.view("throttle_log")
    assert {row["publish_seq"]: row["verb"] for row in found} == expected
    assert set(expected.values()) == {"throttle", "extend", "renew", "release"}
    assert all(row["written_at"].timestamp() * 1000 == row["written_at_ms"] for row in found)
    assert all(row["reason"] for row in found)


def test_dead_letters_are_counted_by_the_cause_that_the_jobs_reading_found(written: Written) -> None:
    expected = Counter(row["cause"] for row in written.rows("dead_letters"))
    rows = written.view("dead_letters_by_cause")
    assert {row["cause"]: row["letters"] for row in rows} == expected
    assert len(expected) >= 2
    assert sum(expected.values()) == 3
    assert any("is no text" in row["newest_value"] for row in rows)


def test_batches_tell_their_messages_their_age_and_when_their_records_were_stored(written: Written) -> None:
    rows = sorted(written.view("batch_facts"), key=lambda row: int(row["batch_id"]))
    assert len(rows) == len(written.rows("batches"))
    assert sum(row["messages"] or 0 for row in rows[1:]) == len(written.tables.job.messages) - 1
    assert {row["since_last_ms"] for row in rows[1:10]} == {5_000}
    stored = Counter(
        row["batch_id"]
        for row in written.rows("throttle_events")
        if row["due_ms"] is None and row["cause"] == "violation"
    )
    assert {row["batch_id"]: row["records"] for row in rows if row["records"]} == stored
    assert all(row["age_ms"] == row["processed_at_ms"] - row["evaluated_at_ms"] for row in rows)


def test_edits_are_those_of_the_history_of_the_command_line(written: Written) -> None:
    rows = written.view("quota_edits")
    expected = {
        (version.commit.version, change.user, change.client_id)
        for version in versions(written.tables.job.quota_table, 100)
        for change in version.changes
    }
    assert _set_of(rows, ("version", "user", "client_id")) == expected
    (raised,) = (row for row in rows if row["reason"] == "month end")
    assert (raised["actor"], raised["change"]) == ("ada", "changed")
    assert (raised["producer_byte_rate_before"], raised["producer_byte_rate"]) == (100_000.0, 250_000.0)
    assert {row["change"] for row in rows} == {"added", "changed", "removed"}


def test_versions_and_freshness_are_those_of_the_tables(written: Written) -> None:
    batches = written.rows("batches")
    decided = Counter(row["quota_version"] for row in batches)
    assert {row["quota_version"]: row["batches"] for row in written.view("quota_versions")} == decided
    fresh = {row["table_name"]: row for row in written.view("freshness")}
    assert fresh["batches"]["newest_ms"] == max(row["processed_at_ms"] for row in batches)
    assert fresh["usage"]["newest_ms"] == max(row["evaluated_at_ms"] for row in written.rows("usage"))
    assert fresh["batches"]["age_seconds"] < fresh["usage_by_minute"]["age_seconds"]
