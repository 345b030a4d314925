"""Every SQL text of deploy/ and of the pages, run by Spark on tables that a job has written, against the raw rows."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from pipeline.clock import wall_ms
from pipeline.settings.model import EngineSettings
from pipeline.stream.job_tables import WRITTEN_BY_THE_JOB
from pipeline.tables.port import table_uri
from pipeline.tables.queries import read_table
from pipeline.tables.quotas.history import versions
from pipeline.tables.throttles import Held, running_throttles
from pipeline.tables.upkeep import clean, compact
from quota.engine import QuotaEngine
from quota.entity import Owners
from quota.snapshot import QuotaSnapshot
from quota.tenants import NO_TENANT, Patterns, read_tenants
from schemas.throttle_record import verb, written_ms
from tests.deploy.commands import DEPLOY
from tests.pages.blocks import PAGES, blocks_of
from tests.pipeline.dashboard.shop import LivedTables, Sender, quota, set_back_shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]
SCHEMA: Final = "kquota_views"
DAY_MS: Final = 86_400_000
STEP_MS: Final = 5_000
# All eight levels hold for somebody. To an empty client-id the levels that name a default one do not apply.
QUOTAS: Final = (
    quota("alice", "etl", producer_byte_rate=100_000.0, owner="data-platform", note="nightly loads"),
    quota("alice", "", producer_byte_rate=900_000.0, consumer_byte_rate=50_000.0, owner="alice's team"),
    quota("search", "<default>", consumer_byte_rate=100_000.0, request_percentage=20.0, owner="search"),
    quota("vip", "", mode="exempt", owner="board"),
    quota("ml", "", consumer_byte_rate=50_000.0, mode="shadow", owner="ml"),
    quota("", "shared", request_percentage=30.0),
    quota("<default>", "legacy", producer_byte_rate=40_000.0),
    quota("<default>", "<default>", consumer_byte_rate=1e9),
    quota("gone", "", producer_byte_rate=1.0, note="until May"),
    quota("<default>", "", producer_byte_rate=120_000.0, owner="platform"),
    quota("", "<default>", request_percentage=50.0),
    quota("hog", "solo", producer_byte_rate=120_000.0),
)


# All that their members want fits. The most specific pattern decides: bob's own one, a user's before a client-id's.
TENANTS: Final = (
    {"tenant": "b", "user_patterns": ("bo*", "c*"), "producer_byte_rate": 1e6, "owner": "board"},
    {"tenant": "c", "user_patterns": ("bob",), "client_id_patterns": ("leg*", "etl"), "producer_byte_rate": 1e9},
)


def _steady(**rates: float) -> Any:
    return lambda _second: rates


def _by_day(second: float) -> Mapping[str, float]:
    """Quiet in the night; from the second half on far beyond any quota."""
    return {"produced_bytes": 1_000 if second < _NIGHT_SECONDS + 20 else 60_000_000}


_NIGHT_SECONDS: Final = 150
_DAY_SECONDS: Final = 150
SENDERS: Final = (
    Sender("alice", "etl", _steady(produced_bytes=300_000)),
    Sender("alice", "notebook", _steady(produced_bytes=10_000, fetched_bytes=80_000)),
    Sender("alice", "", _steady(fetched_bytes=5_000), broker_id="2"),
    Sender("search", "indexer", _steady(fetched_bytes=60_000, io_time_ns=40_000_000, network_time_ns=30_000_000)),
    Sender("search", "", _steady(fetched_bytes=2_000)),
    Sender("vip", "etl", _steady(produced_bytes=900_000)),
    Sender("ml", "train", _steady(fetched_bytes=90_000)),
    Sender("bob", "shared", _steady(produced_bytes=30_000, broker_throttle_ms=100)),
    Sender("carol", "legacy", _steady(produced_bytes=30_000), broker_id="2"),
    Sender("hog", "bulk", _by_day),
    Sender("hog", "solo", _by_day),
)


def written_tables(folder: Path) -> LivedTables:
    """Write the tables of a night and a day. Throttles have no cap, so one still runs when the tables are read."""
    today_ms = wall_ms() // 60_000 * 60_000 - _DAY_SECONDS * 1_000
    caps = EngineSettings(producer_byte_rate_cap="none")
    tables = LivedTables(folder, QUOTAS, SENDERS, today_ms - DAY_MS, caps, at_once=True, tenants=TENANTS)
    tables.live(20, STEP_MS)
    tables.send_garbage()
    tables.job.send(b"\xff\xfe is not text")
    tables.live(60, STEP_MS)
    tables.edit([quota("alice", "etl", producer_byte_rate=250_000.0, owner="data-platform")], "month end")
    tables.live(_NIGHT_SECONDS - 80, STEP_MS)
    tables.roll_up()
    tables.job.clock.advance(today_ms - tables.now_ms)
    tables.live(_DAY_SECONDS - 20, STEP_MS)
    tables.edit([quota("bob", "", producer_byte_rate=500_000.0)], "new team", without=[("gone", "")])
    tables.live(20, STEP_MS)
    tables.roll_up()
    for name in WRITTEN_BY_THE_JOB:
        compact(table_uri(tables.root, name), many_files=1)
        clean(table_uri(tables.root, name))
    return tables


@dataclass
class Written:
    spark: "SparkSession"
    tables: LivedTables
    _answers: dict[str, list[Row]] = field(default_factory=dict)

    def sql(self, query: str) -> list[Row]:
        """What Spark answers; names without a schema are those of the views."""
        self.spark.sql(f"USE {SCHEMA}")
        try:
            return [row.asDict() for row in self.spark.sql(query).collect()]
        finally:
            self.spark.sql("USE default")

    def answer(self, query: str) -> list[Row]:
        """The same, asked once: for what does not depend on the time."""
        if query not in self._answers:
            self._answers[query] = self.sql(query)
        return self._answers[query]

    def view(self, name: str) -> list[Row]:
        return self.answer(f"SELECT * FROM {name}")  # noqa: S608

    def rows(self, name: str) -> list[Row]:
        found: list[Row] = read_table(table_uri(self.tables.root, name)).to_pylist()
        return found


VIEWS: Final = DEPLOY / "sql" / "views.sql"
QUOTA_HISTORY: Final = DEPLOY / "sql" / "quota_history.sql"
SQL_BOARD: Final = DEPLOY / "grafana" / "kquota-sql.json"
AI_BI_BOARD: Final = DEPLOY / "databricks" / "kquota.lvdash.json"
_TIME_FILTER = re.compile(r"\$__timeFilter\(([a-zA-Z0-9_-]+)\)")
_VIEW = re.compile(r"CREATE OR REPLACE VIEW (\w+)")
_AGGREGATE = re.compile(r"^(SUM|MAX|COUNT)\(")


def statements(text: str) -> Iterator[str]:
    """The statements of a file, without comments. A semicolon is only where a statement ends."""
    bare = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    yield from (statement.strip() for statement in bare.split(";") if statement.strip())


def read_board(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text("utf-8")))


def panel_queries() -> Mapping[str, str]:
    """Title of each Grafana panel -> its SQL, with variables and macros filled in as Grafana and the plugin do."""
    targets = {panel["title"]: panel.get("targets", ()) for panel in read_board(SQL_BOARD)["panels"]}
    found = {title: one["rawSqlQuery"].replace("${schema}", SCHEMA) for title, some in targets.items() for one in some}
    texts = {title: text.replace("${user}", "%") for title, text in found.items()}
    time_range = r"\1 BETWEEN '1970-01-01 00:00:00' AND '2999-01-01 00:00:00'"
    return {title: _TIME_FILTER.sub(time_range, text) for title, text in texts.items()}


def widget_queries() -> Mapping[str, str]:
    """Name of each widget of the AI/BI dashboard -> its fields over its dataset, grouped where it sums."""
    board = read_board(AI_BI_BOARD)
    datasets = {dataset["name"]: "".join(dataset["queryLines"]) for dataset in board["datasets"]}
    found = {}
    for widget in (item["widget"] for page in board["pages"] for item in page["layout"] if "queries" in item["widget"]):
        (query,) = (one["query"] for one in widget["queries"])
        # COUNT(`*`) is how these dashboards write COUNT(*).
        fields = [(field["expression"].replace("`*`", "*"), field["name"]) for field in query["fields"]]
        columns = ", ".join(f"{expression} AS `{name}`" for expression, name in fields)
        is_grouped = not query["disaggregated"] and not all(_AGGREGATE.match(expression) for expression, _ in fields)
        text = f"SELECT {columns} FROM ({datasets[query['datasetName']]})"  # noqa: S608
        found[widget["name"]] = text + (" GROUP BY ALL" if is_grouped else "")
    return found


pytestmark = [pytest.mark.spark, pytest.mark.long]


@contextmanager
def registered(spark: "SparkSession", schema: str, root: str, views: Collection[str] | None = None) -> Iterator[None]:
    """The tables, and these views over them (None = all), in a schema of their own."""
    variables = {"schema": schema, "tables_root": root}
    for name, value in variables.items():
        spark.conf.set(name, value)
    try:
        for path in (VIEWS, QUOTA_HISTORY):
            for statement in statements(path.read_text("utf-8")):
                if views is None or (_VIEW.match(statement) or [None, None])[1] in {None, *views}:
                    spark.sql(statement)
        spark.sql("USE default")
        yield
    finally:
        spark.sql(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        for name in variables:
            spark.conf.unset(name)


@pytest.fixture(scope="module")
def written(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    tables = written_tables(tmp_path_factory.mktemp("sql"))
    with registered(spark, SCHEMA, tables.root):
        yield Written(spark, tables)


MINUTE_MS: Final = 60_000
USED: Final = ("produced_bytes", "fetched_bytes", "request_time_ns", "exempt_time_ns", "request_count")


def complete_usage(written: Written) -> list[Row]:
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
PANELS = panel_queries()
WIDGETS = widget_queries()
# Columns that are null in every row of such tables: nothing in them has this value.
NEVER_HERE = {
    "quota_edits": {"consumer_byte_rate_before", "request_percentage_before"},
    "tenants_now": {"tenant_level"},
}


@pytest.mark.parametrize("name", VIEW_NAMES)
def test_a_view_has_rows_and_a_value_in_every_column(written: Written, name: str) -> None:
    rows = written.view(name)
    assert rows
    empty = {column for column in rows[0] if all(row[column] is None for row in rows)}
    assert empty <= NEVER_HERE.get(name, set())


EXAMPLES = [
    statement
    for page in PAGES
    for block in blocks_of(page.read_text("utf-8"))
    if block.language == "sql"
    for statement in statements(block.text)
]


@pytest.mark.parametrize(("view", "span_ms"), [("minute", MINUTE_MS), ("hour", 60 * MINUTE_MS)])
def test_usage_by_minute_and_hour_is_the_sum_of_the_raw_usage(written: Written, view: str, span_ms: int) -> None:
    owner_of = owners(written).of

    def key(row: Row) -> tuple[int, str, str, str | None]:
        client = row["user"], row["client_id"]
        return row["sample_start_ms"] // span_ms * span_ms, *client, owner_of(*client)

    expected = summed(complete_usage(written), key)
    rows = written.view(f"client_usage_by_{view}")
    assert told(rows, f"{view}_start_ms", "user", "client_id", "owner") == expected
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
        raw: dict[Any, list[Row]] = defaultdict(list)
        for row in complete_usage(written):
            raw[name_of(day_of(row["sample_start_ms"])), owner_of(row["user"], row["client_id"])].append(row)
        of_kind = [row for row in rows if row["period_kind"] == kind]
        assert told(of_kind, "period", "owner") == {key: sum(map(used, some), Counter()) for key, some in raw.items()}
        for row in of_kind:
            some = raw[row["period"], row["owner"]]
            assert row["clients"] == len(set_of(some, ("user", "client_id")))
            days = sorted(day_of(one["sample_start_ms"]) for one in some)
            assert (row["first_day"], row["last_day"]) == (days[0], days[-1])
    assert {row["owner"] for row in rows} >= {"data-platform", "alice's team", "platform", "board"}
    assert len({row["period"] for row in rows if row["period_kind"] == "day"}) == 2


def test_use_is_charged_to_the_tenant_with_the_most_specific_pattern(written: Written) -> None:
    tenants = read_tenants(written.rows("tenants"), 1)
    of_part: list[Patterns] = [Patterns(tenants, "users"), Patterns(tenants, "client_ids")]

    def tenant_of(row: Row) -> str | None:
        names = row["user"], row["client_id"]
        found = [int(one.match(pa.array([name]))[0]) for one, name in zip(of_part, names, strict=True)]
        return next((tenants[at].name for at in found if at != NO_TENANT), None)

    raw: dict[Any, list[Row]] = defaultdict(list)
    for row in complete_usage(written):
        raw[day_of(row["sample_start_ms"]).isoformat(), tenant_of(row)].append(row)
    of_days = [row for row in written.view("chargeback_by_tenant") if row["period_kind"] == "day"]
    assert told(of_days, "period", "tenant") == {key: sum(map(used, some), Counter()) for key, some in raw.items()}
    found = {(row["user"], row["client_id"]): row["tenant"] for row in written.view("client_tenants")}
    of_each = {("alice", "etl"): "c", ("bob", "shared"): "c", ("carol", "legacy"): "b", ("vip", "etl"): "c"}
    assert found == of_each


def test_what_the_members_of_a_tenant_use_now_is_that_of_the_rates(written: Written) -> None:
    rates = [row for row in written.rows("rates") if row["clients"] is not None and row["tenant"] is not None]
    found = {row["tenant"]: row for row in written.view("tenants_now")}
    for tenant, bound in (("b", 1e6), ("c", 1e9)):
        of_tenant = [row for row in rates if row["tenant"] == tenant]
        assert found[tenant]["members"] == len(of_tenant) > 0
        assert found[tenant]["observed"] == pytest.approx(sum(row["observed"] for row in of_tenant))
        assert found[tenant]["share"] == found[tenant]["observed"] / found[tenant]["bound"]
        assert found[tenant]["bound"] == bound


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


def test_seconds_held_by_day_are_those_of_the_minutes(written: Written) -> None:
    """Which `throttle_by_minute` has; its own tests compare it with the records."""
    held_ms: Counter[Any] = Counter()
    minutes = set()
    for row in written.rows("throttle_by_minute"):
        key = day_of(row["minute_start_ms"]), row["user"], row["client_id"], row["quota_type"]
        held_ms[key] += row["held_ms"]
        if row["held_ms"]:
            minutes.add((key, row["owner"], row["minute_start_ms"]))
    found, in_minutes = Counter[Any](), Counter[Any]()
    for row in written.view("throttled_by_day"):
        key = row["day"], row["user"], row["client_id"], row["quota_type"]
        found[key] += round(row["held_seconds"] * 1000)
        in_minutes[key] += row["minutes_held"]
    assert +found == +held_ms
    assert +in_minutes == Counter(key for key, *_ in minutes)
    assert len(+held_ms) >= 4


def test_who_is_throttled_now_is_what_the_command_line_lists(written: Written) -> None:
    before_ms = wall_ms()
    found = written.sql("SELECT * FROM throttled_now")
    after_ms = wall_ms()
    listed = running_throttles(written.tables.root, after_ms)
    names = ("user", "client_id", "quota_type", "throttled_until_ms", "decision_id")
    assert set_of(found, names) == set_of(listed, names)
    hog, solo = sorted((row for row in found if row["user"] == "hog"), key=lambda row: row["client_id"] or "")
    assert [(row["client_id"], row["except_client_ids"]) for row in (hog, solo)] == [
        (None, ["legacy", "solo"]),
        ("solo", None),
    ]
    assert hog["owner"] == "platform"
    assert re.fullmatch(r"used [\d,.]+ kB/s over [\d.]+ s, its quota is 120.0 kB/s: wait [\d,.]+ s", hog["reason"])
    assert after_ms >= hog["throttled_until_ms"] - hog["remaining_ms"] >= before_ms


def test_the_clients_that_are_held_now_are_those_of_the_command_line(written: Written) -> None:
    found = written.sql("SELECT * FROM held_clients_now")
    held = Held(running_throttles(written.tables.root, wall_ms()))
    known = {(row["user"], row["client_id"]) for row in written.rows("usage_by_minute")}
    expected = {(*client, until_ms) for client in known if (until_ms := held.until_ms(*client)) is not None}
    assert set_of(found, ("user", "client_id", "held_until_ms")) == expected
    assert ("hog", "bulk") in {one[:2] for one in expected}


def test_each_decision_is_joined_once_with_what_was_published_for_it(written: Written) -> None:
    rows, published = written.rows("decisions"), Counter(row["decision_id"] for row in written.rows("throttle_events"))
    found = written.view("decisions_published")
    assert Counter(row["decision_id"] for row in found) == Counter(row["decision_id"] for row in rows)
    assert all(row["records"] == published[row["decision_id"]] for row in found)
    assert sum(row["records"] for row in found if row["asks_hold"]) == published.total()


def test_a_sensor_is_above_its_bound_once_in_a_batch(written: Written) -> None:
    above = {
        tuple(row[name] for name in ("batch_id", "sensor_user", "sensor_client_id", "quota_type", "mode"))
        for row in written.rows("decisions")
        if row["throttle_time_ms"]
    }
    assert sum(row["decisions"] for row in written.view("throttle_time_by_minute")) == len(above)


def test_each_record_has_the_verb_of_the_log(written: Written) -> None:
    expected = {row["publish_seq"]: (verb(row), written_ms(row)) for row in written.rows("throttle_events")}
    found = written.view("throttle_log")
    assert {row["publish_seq"]: (row["verb"], row["written_at_ms"]) for row in found} == expected
    assert {one for one, _ in expected.values()} == {"throttle", "extend", "renew", "release"}
    assert all(row["written_at"].timestamp() * 1000 == row["written_at_ms"] for row in found)


def test_dead_letters_are_counted_by_cause(written: Written) -> None:
    letters = written.rows("dead_letters")
    rows = written.view("dead_letters_by_cause")
    assert {row["cause"]: row["letters"] for row in rows} == Counter(row["cause"] for row in letters)
    assert len(rows) >= 2
    assert any("is not text" in row["newest_value"] for row in rows)
    for row in rows:
        of_cause = [one for one in letters if one["cause"] == row["cause"]]
        assert row["newest_at_ms"] == max(one["appended_at_ms"] for one in of_cause)
        newest = [one for one in of_cause if one["appended_at_ms"] == row["newest_at_ms"]]
        assert row["newest_place"] in {f"{one['topic']}:{one['partition']}:{one['offset']}" for one in newest}


def test_edits_are_those_of_the_history_of_the_command_line(written: Written) -> None:
    rows = written.view("quota_edits")
    expected = {
        (version.commit.version, *change.key)
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
    tables = set_back_shop(tmp_path, 20_000)
    with registered(spark, "kquota_stepped", tables.root, {"freshness", "batch_facts", "quota_versions"}):
        fresh = {row["table_name"]: row["newest_ms"] for row in spark.sql("TABLE kquota_stepped.freshness").collect()}
        facts = spark.sql("TABLE kquota_stepped.batch_facts").collect()
        (version,) = spark.sql("SELECT * FROM kquota_stepped.quota_versions").collect()
    assert (fresh["batches"], fresh["usage"]) == (tables.now_ms, tables.now_ms - 1_000)
    assert fresh["throttle_events"] <= tables.now_ms
    assert sorted({row["time_epoch"] for row in facts}) == [0, 1]
    assert all(row["since_last_ms"] is None or row["since_last_ms"] >= 0 for row in facts)
    assert (version["last_evaluated_at_ms"], version["batches"]) == (tables.now_ms - 1_000, 46)


@pytest.mark.parametrize("query", [*PANELS.values(), *WIDGETS.values(), *EXAMPLES], ids=[*PANELS, *WIDGETS, *EXAMPLES])
def test_a_panel_a_widget_and_an_example_of_the_pages_show_something(written: Written, query: str) -> None:
    rows = written.answer(query)
    assert rows
    assert all(any(row[name] is not None for row in rows) for name in rows[0])
