"""`kquota throttles explain`: the one cause of a decision without a record, and times that add up."""

import json
import re
import shlex
from collections import Counter
from pathlib import Path
from shutil import rmtree
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipeline.clock import clock_time, wall_ms
from pipeline.replay.story import computed_time, record_lines, why_nothing
from pipeline.stream.job_tables import BatchFacts
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import table_uri
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable, TenantTable
from pipeline.tables.quotas.tenants import TenantChange
from pipeline.tables.throttles import why_unpublished
from quota.decisions import Evaluation
from schemas.arrow import arrow_schema
from schemas.rows import QuotaRow
from tests.pipeline.cli.running import kquota
from tests.pipeline.replay.kept import AUDIT, KeptJob
from tests.pipeline.tables.factories import EventTable
from tests.quota.factories import usage_row

AT_MS = 1_700_000_040_000
MAX_AGE_MS = 30_000
DECISION: dict[str, Any] = {
    "time_epoch": 0,
    "query_id": "q",
    "batch_id": 7,
    "evaluated_at_ms": AT_MS,
    "broker_id": "",
    "user": "u",
    "client_id": "app",
    "mode": "enforce",
    "asks_hold": True,
    "sensor_user": "",
    "sensor_client_id": "app",
    "quota_type": "producer_byte_rate",
    "throttle_time_ms": 1_000,
    "owed_ms": 0,
    "quota_version": 99,
    "tenants_version": 99,
}


class Tables:
    """Tables of a job that collected the batch of the decision a second after its events."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        create_missing(self.root, [TABLES[name] for name in ("batches", "decisions", "quotas", "tenants")])
        self.events = EventTable(root)
        self.collected(1_000)

    def collected(self, age_ms: int, at_ms: int = AT_MS) -> None:
        facts = BatchFacts(Evaluation("q", 7, at_ms, 1), at_ms + age_ms, "", "", "{}", 1, 0, 0, 0, 0)
        write_deltalake(table_uri(self.root, "batches"), facts.to_row("c"), mode="overwrite")

    def record(self, written_ms: int, throttle_time_ms: int, cause: str, batch_id: int = 6) -> None:
        """Of another decision; without a time it is a release."""
        action = "throttle" if throttle_time_ms else "release"
        about = {"decision_id": "first", "batch_id": batch_id, "cause": cause}
        self.events.write(("app", action, AT_MS + written_ms, throttle_time_ms), **about)

    def why(self, **changes: Any) -> str:
        found = why_unpublished(self.root, DECISION | changes, MAX_AGE_MS, 1_000)
        return why_nothing(found, MAX_AGE_MS).removeprefix("published: nothing")


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


@pytest.mark.parametrize(
    ("decision", "told"),
    [
        ({}, "restart"),
        ({"mode": "shadow", "asks_hold": False}, ": its quota is in shadow mode"),
        ({"asks_hold": False}, ": the throttle of another quota type is longer, or as long"),
        ({"asks_hold": False, "throttle_time_ms": 0}, ": its throttle time is 0 ms, rounded"),
        ({"throttle_time_ms": 999}, "not published: shorter than min_hold_ms (1000 ms); what it owes stays owed"),
    ],
)
def test_a_decision_without_a_record_has_one_cause(decision: dict[str, Any], told: str, tables: Tables) -> None:
    assert told in tables.why(**decision)


def test_a_decision_that_came_too_late_says_how_old_it_was(tables: Tables) -> None:
    tables.collected(MAX_AGE_MS)
    assert "restart" in tables.why(), "as old as allowed is not too old"
    tables.collected(MAX_AGE_MS + 1)
    assert tables.why().startswith(": it was 30.001 s old when it was collected, more than stream.max_decision_age_ms")


def test_a_decision_under_quotas_of_before_an_edit_names_the_edit(tables: Tables) -> None:
    version = QuotaTable(tables.root).alter([QuotaChange("u", "", {"producer_byte_rate": 1.0})], AUDIT)
    tables.collected(0)
    assert "restart" in tables.why(quota_version=version)
    late_ms = 4_000_000_000_000
    tables.collected(0, late_ms)
    told = tables.why(quota_version=version - 1, evaluated_at_ms=late_ms)
    assert told == f": quotas v{version} came into force before it could be published"
    team = TenantChange("t", {"producer_byte_rate": 1.0}, added={"user_patterns": ["u"]})
    version = TenantTable(tables.root).alter([team], AUDIT)
    told = tables.why(tenants_version=version - 1, evaluated_at_ms=late_ms)
    assert told == f": tenants v{version} came into force before it could be published"


def test_soon_after_a_release_a_decision_must_hold_twice_as_long(tables: Tables) -> None:
    tables.record(-4_000, 3_000, "violation")
    tables.record(-1_000, 0, "expired")
    assert "(1000 ms, twice as long soon after a release)" in tables.why(throttle_time_ms=1_999)
    assert "restart" in tables.why(throttle_time_ms=2_000)
    assert "restart" in tables.why(throttle_time_ms=500, owed_ms=2_000)


@pytest.mark.parametrize("ago_ms", [500, 19_000, 21_000, 590_000, 610_000, 86_000_000])
def test_the_record_that_holds_a_client_is_found_however_long_ago_it_was_written(tables: Tables, ago_ms: int) -> None:
    tables.record(-ago_ms, ago_ms + 8_500, "violation")
    assert tables.why() == ": the client already waits: record #0 of decision first holds it until 22:14:08.500"
    tables.record(-100, 0, "quota_changed")
    assert "already waits" not in tables.why()


def test_a_decision_that_made_a_throttle_longer_names_its_record(tables: Tables) -> None:
    tables.record(-500, 9_000, "violation")
    tables.record(1_100, 20_000, "extended", batch_id=7)
    assert tables.why() == " under this id: it made a running throttle longer, with record #1 of decision first"


def event(seq: int, written_ms: int, throttle_time_ms: int, **changes: Any) -> dict[str, Any]:
    return {
        **dict.fromkeys(("cluster", "broker_id", "tokens", "lateness_ms")),
        **{"query_id": "q", "batch_id": 7, "user": "u", "client_id": "app", "quota_type": "producer_byte_rate"},
        **{"cause": "renewed", "action": "throttle", "decision_id": "first", "owed_ms": 90},
        **{"observed": 109_000.0, "bound": 100_000.0, "window_ms": 1_000},
        **{"publish_seq": seq, "throttle_time_ms": throttle_time_ms},
        **{"throttled_until_ms": AT_MS + written_ms + throttle_time_ms, **changes},
    }


def test_the_times_of_records_add_up_to_the_time_held() -> None:
    first, second = event(0, 0, 1_108), event(1, 862, 900, owed_ms=12_706, tokens=-1_270_600.0)
    head, *lines = record_lines([first, second, event(2, 5_000, 0, action="release")], 1_000)
    assert "(held for 1.762 s in all;" in head, "a client whose end has passed is not held, however late the release"
    assert lines[0].startswith("  #0 22:14:00.000 renew    for 1.108 s until 22:14:01.108: ")
    assert lines[1].endswith(
        " 22:14:00.862 renew    for 0.900 s until 22:14:01.762: owes 12.706 s by its debt of 1.3 MB"
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cause": "expired"}, "O 109.0 > T 100.0 kB/s, owes 90 ms, not more than purgatory.min_hold_ms = 1000"),
        ({"cause": "quota_changed", "bound": None, "owed_ms": 0}, "O 109.0 kB/s, no bound is enforced any more"),
    ],
)
def test_a_release_says_why_it_is_right(changes: dict[str, Any], why: str) -> None:
    assert record_lines([event(0, 0, 0, action="release", **changes)], 1_000)[1].endswith(f"{changes['cause']}: {why}")


@pytest.mark.parametrize(
    ("figures", "shown"),
    [
        ((120.0, 100.0, 10_500, 2_100), "(120.0 − 100.0) / 100.0 · 10500 ms = 2100 ms"),
        ((100.04, 100.0, 11_000, 4), "(100.04 − 100.00) / 100.00 · 11000 ms = 4.40 ms, rounded = 4 ms"),
    ],
)
def test_the_figures_shown_give_the_throttle_time(figures: tuple[float, float, int, int], shown: str) -> None:
    assert computed_time(*figures) == shown


def test_capping_is_told_only_where_something_is_capped(tmp_path: Path) -> None:
    job = KeptJob(str(tmp_path), QuotaChange("alice", "", {"producer_byte_rate": 1_000.0}))
    for produced_bytes in (12_000, 90_000):
        job.clock.advance(1_000)
        job.decided += job.batch([usage_row(job.clock.wall_ms, user="alice", produced_bytes=produced_bytes)])
    job.flush()
    whole, capped = (row for row in job.decided if row["asks_hold"])
    for row, is_capped in ((whole, False), (capped, True)):
        told = kquota("throttles", "explain", row["decision_id"], "--tables", job.root).stdout
        rest_ms = row["raw_throttle_time_ms"] - row["throttle_time_ms"]
        assert (rest_ms > 0, "  capped    " in told) == (is_capped, is_capped)
        assert (f"to {row['throttle_time_ms']} ms; the other {rest_ms} ms stay owed" in told) is is_capped


def test_the_decision_on_a_client_of_a_held_user_names_the_decision_on_the_user(tmp_path: Path) -> None:
    job = KeptJob(str(tmp_path), QuotaChange("alice", "", {"producer_byte_rate": 1_000.0}))
    of_user, of_client = job.batch([usage_row(AT_MS, user="alice", client_id="etl", produced_bytes=90_000)])
    job.flush()
    assert (of_user["client_id"], of_client["client_id"]) == (None, "etl")
    told = kquota("throttles", "explain", of_client["decision_id"], "--tables", job.root).stdout
    why = "its user is held, with all client-ids of the sensor"
    assert f", mode enforce, asks for no hold: {why}\n" in told
    assert f"published: nothing: {why}, by decision {of_user['decision_id']}" in told


class OfUser:
    """All client-ids of alice but web are held for what they produce, and web for what it fetches."""

    def __init__(self, root: Path) -> None:
        limits = {"producer_byte_rate": 1_000.0}
        self.job = KeptJob(str(root), QuotaChange("alice", "", limits), QuotaChange("alice", "web", limits))
        self.now_ms = wall_ms()
        used = [
            usage_row(self.now_ms - 60_000, user="alice", client_id=name, produced_bytes=90_000)
            for name in ("etl", "web")
        ]
        self.rows = {row["client_id"]: row for row in self.job.batch(used)}
        self.job.batch([usage_row(self.now_ms - 56_000, user="alice", client_id="late", produced_bytes=1)])
        self.job.flush()
        events, about = EventTable(root, epoch=9), {"user": "alice", "cause": "violation", "bound": 1_000.0}
        for client_id, seconds in ((None, 900), ("web", 300)):
            own = {"decision_id": self.rows[client_id]["decision_id"], "quota_type": "producer_byte_rate"}
            excepted = {} if client_id else {"except_client_ids": ["web"]}
            events.write((client_id, "throttle", self.now_ms, seconds * 1_000), **about, **own, **excepted)

    def asked(self, *arguments: str) -> str:
        return kquota("throttles", *arguments, "--tables", self.job.root).stdout


@pytest.fixture(scope="module")
def of_user(tmp_path_factory: pytest.TempPathFactory) -> OfUser:
    return OfUser(tmp_path_factory.mktemp("user"))


@pytest.mark.parametrize(
    ("names", "client_id"),
    [("alice/*", None), ("alice *", None), ("alice/etl", None), ("alice/new", None), ("alice/web", "web")],
)
def test_a_client_is_explained_by_the_throttle_that_holds_it_its_own_or_its_users(
    names: str, client_id: str | None, of_user: OfUser
) -> None:
    told = of_user.asked("explain", *names.split())
    row = of_user.rows[client_id]
    assert told.startswith(f"decision {row['decision_id']}: alice/{client_id or '*'} is over producer_byte_rate\n")
    assert f"\nnow: held until {clock_time(of_user.now_ms + (300_000 if client_id else 900_000))}, " in told
    assert ("  holds     all client-ids of alice, but web\n" in told) is (client_id is None)
    (samples,) = re.findall(r"\n  [\d:.]+  [█│ ]+ ([\d.]+)\n", told)
    assert samples == "90.0", "the other client has a sensor of its own"


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("", [None, "web"]),
        ("--client-id new --user alice", [None]),
        ("--client-id web --user alice", ["web"]),
        ("--client-id web", ["web"]),
        ("--all --client-id new --user alice", [None]),
    ],
)
def test_a_client_is_listed_with_the_throttles_it_has(flags: str, found: list[str | None], of_user: OfUser) -> None:
    rows = json.loads(of_user.asked("list", *flags.split(), "-o", "json"))
    assert {row["client_id"] for row in rows} == {*found}
    assert len(rows) == len(found)


class Throttled:
    """alice/etl is over its quota twice; the first decision throttled it, and it was let go again."""

    def __init__(self, root: Path) -> None:
        self.job = KeptJob(str(root), QuotaChange("alice", "etl", {"producer_byte_rate": 1_000.0}))
        self.now_ms = wall_ms()
        usage = [
            usage_row(self.now_ms - 60_000 + ms, user="alice", client_id="etl", produced_bytes=90_000)
            for ms in (0, 3_000)
        ]
        self.ids = [self.job.batch([row])[0]["decision_id"] for row in usage]
        self.job.batch([usage_row(self.now_ms - 56_000, user="alice", client_id="quiet", produced_bytes=1)])
        self.job.flush()
        self.events = EventTable(root, epoch=9)

    def record(self, action: str, ago_ms: int, throttle_time_ms: int, decision: int = 0) -> None:
        written_ms = self.now_ms - ago_ms
        self.events.write(
            ("etl", action, written_ms, throttle_time_ms),
            user="alice",
            decision_id=self.ids[decision],
            quota_type="producer_byte_rate",
            cause="violation" if action == "throttle" else "expired",
        )

    def explained(self, *names: str) -> str:
        return kquota("throttles", "explain", *names, "--tables", self.job.root).stdout


@pytest.fixture
def throttled(tmp_path: Path) -> Throttled:
    return Throttled(tmp_path)


def test_a_beginning_of_several_ids_is_answered_with_a_command_for_the_first(tmp_path: Path) -> None:
    job = KeptJob(str(tmp_path), QuotaChange("<default>", "", {"producer_byte_rate": 1_000.0}))
    rows = job.batch([usage_row(AT_MS, user=f"u{number}", produced_bytes=90_000) for number in range(16 * 6 + 1)])
    job.flush()
    digit, count = Counter(row["decision_id"][0] for row in rows).most_common(1)[0]
    ids = sorted(row["decision_id"] for row in rows if row["decision_id"][0] == digit)
    answer = kquota("throttles", "explain", digit, "--tables", job.root)
    assert answer.exit_code == 2
    assert f"{', '.join(ids[:5])}, {count - 5} more. Fix: " in answer.stderr
    fix = shlex.split(answer.stderr.rpartition("in full: ")[2])
    assert kquota(*fix[fix.index("throttles") :], "--tables", job.root).stdout.startswith(f"decision {ids[0]}: ")


@pytest.mark.parametrize(
    ("records", "decision", "now"),
    [
        ([], 1, "not held"),
        ([("throttle", 59_000, 30_000), ("release", 40_000, 0)], 0, "not held since {40000}"),
        ([("throttle", 59_000, 2_000), ("release", 40_000, 0)], 0, "not held since {57000}"),
        ([("throttle", 59_000, 1_000_000)], 0, "held until {-941000}, "),
    ],
    ids=["never throttled", "released", "lapsed before its release", "held"],
)
def test_a_client_is_told_its_newest_throttle_and_not_a_newer_decision(
    records: list[tuple[str, int, int]], decision: int, now: str, throttled: Throttled
) -> None:
    for record in records:
        throttled.record(*record)
    shown = re.sub(r"{(.*)}", lambda ago: clock_time(throttled.now_ms - int(ago[1])), now)
    by_id = throttled.explained(throttled.ids[decision])
    for names in (("alice", "etl"), ("alice/etl@1",)):
        told = throttled.explained(*names)
        assert told.startswith(f"{by_id}now: {shown}")
        left, advice = told.removeprefix(f"{by_id}now: {shown}").splitlines()
        assert re.fullmatch(r"|9[0-4]\d\.\d s left", left)
        assert advice.startswith(
            "one produce request of alice/etl had at least 90.0 kB, 90.0 s of its producer_byte_rate "
        )
        (document,) = json.loads(throttled.explained(*names, "-o", "json"))
        assert document["large_requests"] == [advice]


@pytest.mark.parametrize("bound", [1_000.0, None], ids=["throttle", "no bound any more"])
def test_a_throttle_without_a_stored_decision_is_told_by_its_record(bound: float | None, throttled: Throttled) -> None:
    throttled.record("throttle", 59_000, 10_000)
    about = {"user": "alice", "sensor_user": "alice", "sensor_client_id": "etl", "quota_type": "producer_byte_rate"}
    figures = {"observed": 8_200.0, "bound": bound, "window_ms": 11_000, "decision_id": "0123456789abcdef"}
    written_ms = throttled.now_ms - 5_000
    throttled.events.write(("etl", "throttle", written_ms, 900_000), cause="violation", **about, **figures)
    throttled.events.write(("etl", "throttle", written_ms + 1_000, 900_000), cause="renewed", **about, **figures)
    told = throttled.explained("alice", "etl")
    assert told.startswith("decision 0123456789abcdef: alice/etl is over producer_byte_rate\n")
    unknown = "by its first record: the decision itself is not stored yet, or not kept any more"
    assert f"  at        {clock_time(written_ms)} UTC, batch 0, {unknown}\n" in told
    assert "  observed  O = 8200.0 bytes/s (8.2 kB/s), over W = 11.000 s\n" in told
    assert ("  bound     T = 1000.0 bytes/s" in told) is (bound is not None)
    assert f"\nnow: held until {clock_time(written_ms + 901_000)}, " in told
    assert told.startswith(throttled.explained("012345"))
    (document,) = json.loads(throttled.explained("alice/etl", "-o", "json"))
    assert [row["cause"] for row in document["events"]] == ["violation", "renewed"]
    assert (document["decision"]["level"], document["bound_set"]) == (None, None)


NOBODY = {"user": "", "client_id": "", "mode": "enforce"}


@pytest.mark.parametrize("rows", [None, [NOBODY]], ids=["no table", "no valid version"])
def test_a_decision_is_explained_without_quotas_in_force(rows: list[Any] | None, throttled: Throttled) -> None:
    uri = table_uri(throttled.job.root, "quotas")
    rmtree(uri)
    if rows is not None:
        write_deltalake(uri, pa.Table.from_pylist(rows, arrow_schema(QuotaRow)))
    told = throttled.explained("alice", "etl")
    assert told.startswith(f"decision {throttled.ids[1]}: ")
    assert told.endswith("\nnow: not held\n")


def test_a_user_alone_is_answered_with_what_to_name(throttled: Throttled) -> None:
    answer = kquota("throttles", "explain", "alice", "--tables", throttled.job.root)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert "name a client-id of alice, or '*' for all of them." in answer.stderr
    unknown = kquota("throttles", "explain", "alice/unknown", "--tables", throttled.job.root)
    assert unknown.exit_code == 3, "a client without decisions is not asked for its client-id"


def test_names_with_slashes_are_found_and_an_empty_user_is_refused(tmp_path: Path) -> None:
    job = KeptJob(str(tmp_path), QuotaChange("<default>", "", {"producer_byte_rate": 1_000.0}))
    job.batch([usage_row(AT_MS, user="a/b", client_id="c/d", produced_bytes=90_000)])
    job.flush()
    assert ": a/b/* is over" in kquota("throttles", "explain", "a/b/c/d", "--tables", job.root).stdout
    for command in (("throttles", "explain", ""), ("quotas", "effective", "", "etl")):
        answer = kquota(*command, "--tables", job.root)
        assert (answer.exit_code, answer.stdout) == (2, "")
        assert answer.stderr.startswith("kquota: USER is empty. Fix: ")
