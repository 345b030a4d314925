import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipeline.reports.rightsizing import Question, suggestion
from pipeline.tables.quotas.table import QuotaTable
from quota.entity import QUOTA_TYPES
from quota.snapshot import QuotaSnapshot
from tests.pipeline.cli.running import Answer, kquota
from tests.pipeline.reports.minutes_kept import KeptMinutes

PRODUCED, FETCHED, REQUEST = QUOTA_TYPES
SPAN = ("--since", "2026-11-23T00:00:00", "--until", "2026-11-24T00:00:00")


HOUR = range(60)


@pytest.fixture
def kept(tmp_path: Path) -> KeptMinutes:
    """The table has a day and a minute before and after it, so every minute of the day is whole."""
    kept = KeptMinutes.create(tmp_path)
    kept.use((-1, "other", ""), (1_440, "other", ""))
    return kept


def hour_of(*clients: tuple[str, str]) -> list[tuple[int, str, str]]:
    return [(minute, *client) for client in clients for minute in HOUR]


def report(kept: KeptMinutes, *words: str) -> Answer:
    answer = kquota("report", "rightsizing", *SPAN, *words, "--tables", kept.root)
    assert answer.exit_code == 0, answer.stderr
    return answer


def rows_of(kept: KeptMinutes, *words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(report(kept, *words, "-o", "json").stdout)
    return rows


@pytest.mark.parametrize(
    ("bound", "throttled", "advice"),
    [
        (1_190.0, False, "raise"),
        (1_200.0, False, "keep"),
        (2_400.0, False, "keep"),
        (2_401.0, False, "lower"),
        (2_401.0, True, "keep"),
        (1_000.0, True, "raise"),
    ],
)
def test_a_bound_is_compared_with_p99_and_headroom(
    kept: KeptMinutes, bound: float, throttled: bool, advice: str
) -> None:
    kept.quota("alice", producer_byte_rate=bound)
    kept.use(*((minute, "alice", "etl") for minute in HOUR), produced_bytes=60_000)
    if throttled:
        kept.hold((3, "alice", "etl", 1))
    (row,) = rows_of(kept)
    assert (row["p95"], row["p99"], row["suggested"]) == (1_000.0, 1_000.0, 1_200.0)
    assert (row["advice"], row["throttled"]) == (advice, throttled)


QUESTION = Question(QuotaSnapshot.from_rows([], version=0), False, (0, 0), frozenset(), headroom=20.0)


@pytest.mark.parametrize(
    ("p99", "minutes", "lately", "suggested"),
    [
        (None, 0, [], None),
        (1_000.0, 59, [], None),
        (1_000.0, 60, [], 1_200.0),
        (1_000.0, 60, [1_200.0], 1_200.0),
        (1_000.0, 60, [5.0, 1_201.0], 1_300.0),
    ],
)
def test_a_suggestion_needs_an_hour_and_is_not_below_the_last_minutes(
    p99: float | None, minutes: int, lately: list[float], suggested: float | None
) -> None:
    found = suggestion(PRODUCED, p99, minutes, [{"most": most} for most in lately], QUESTION)
    assert found == suggested


def test_too_little_use_is_told_with_what_was_seen_and_without_a_suggestion(kept: KeptMinutes) -> None:
    kept.quota("alice", producer_byte_rate=10.0)
    kept.use(*((minute, "alice", "etl") for minute in range(59)), produced_bytes=60_000)
    (row,) = rows_of(kept)
    assert (row["advice"], row["minutes"], row["p99"], row["suggested"]) == ("too little data", 59, 1_000.0, None)
    told = report(kept).stderr
    assert "1440 whole minutes seen; nothing is suggested from less than 60 of use\n" in told


@pytest.mark.parametrize(("minute", "is_partial"), [(-1, True), (0, False), (1_439, False), (1_440, True)])
def test_the_first_and_the_last_minute_that_are_kept_are_left_out(
    kept: KeptMinutes, minute: int, is_partial: bool
) -> None:
    kept.quota("alice", producer_byte_rate=1e6)
    kept.use((minute, "alice", "etl"), produced_bytes=60_000)
    row = json.loads(
        kquota("report", "rightsizing", "--since", "2026-11-22", "--until", "2026-11-25", "-o", "json",
               "--tables", kept.root).stdout
    )[0]  # fmt: skip
    assert row["minutes"] == (0 if is_partial else 1)


def test_a_bound_is_not_lowered_below_the_largest_rate_of_the_last_minutes(kept: KeptMinutes) -> None:
    kept.quota("alice", producer_byte_rate=10_000.0)
    kept.use(*((minute, "alice", "etl") for minute in range(1_000)), produced_bytes=60_000)
    kept.use((1_430, "alice", "etl"), produced_bytes=240_000)
    assert rows_of(kept)[0]["suggested"] == 4_000.0
    kept.use((1_429, "alice", "etl"), produced_bytes=540_000)
    assert rows_of(kept)[0]["suggested"] == 4_000.0, "eleven minutes ago is not lately"


@pytest.mark.parametrize(
    ("user", "client_id", "bound", "new_bound"),
    [("alice", "", 10.0, "1200"), ("a b", "it's", 10_000.0, "1200"), ("<default>", "<default>", 10.0, "1200")],
)
def test_a_suggestion_ends_in_a_command_that_makes_it(
    kept: KeptMinutes, user: str, client_id: str, bound: float, new_bound: str
) -> None:
    kept.quota(user, client_id, producer_byte_rate=bound)
    client = ("u", "c") if user == "<default>" else (user, client_id)
    kept.use(*hour_of(client), produced_bytes=60_000)
    told = report(kept).stderr.splitlines()
    (command,) = (line.partition(": ")[2] for line in told if line.startswith(("raise: ", "lower: ")))
    subprocess.run(["/bin/sh", "-c", command], check=True, capture_output=True)
    (row,) = QuotaTable(kept.root).read().rows
    assert (row["user"], row["client_id"], row["producer_byte_rate"]) == (user, client_id, float(new_bound))


def test_percentiles_are_those_of_the_minutes_in_which_it_was_used(kept: KeptMinutes) -> None:
    kept.quota("alice", producer_byte_rate=1e6)
    for minute in range(100):
        kept.use((minute, "alice", "etl"), produced_bytes=(minute + 1) * 6_000)
    kept.use((200, "alice", "etl"), fetched_bytes=5)
    (row,) = rows_of(kept)
    assert row["p95"] == pytest.approx(9_505)
    assert row["p99"] == pytest.approx(9_901)


def test_clients_that_share_a_bound_are_summed_and_those_with_their_own_are_not(kept: KeptMinutes) -> None:
    kept.quota("alice", producer_byte_rate=1e6)
    kept.quota("alice", "own", producer_byte_rate=1e6)
    kept.use(*hour_of(("alice", "a"), ("alice", "b")), produced_bytes=60_000, broker_id="1")
    kept.use(*hour_of(("alice", "a"), ("alice", "own")), produced_bytes=120_000, broker_id="2")
    found = {(row["user"], row["client_id"]): row["p99"] for row in rows_of(kept)}
    assert found == {("alice", ""): 4_000.0, ("alice", "own"): 2_000.0}


def test_in_scope_broker_the_rate_is_that_at_the_busiest_broker(
    kept: KeptMinutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KQUOTA_SCOPE", "broker")
    kept.quota("alice", producer_byte_rate=1e6)
    kept.use(*hour_of(("alice", "a"), ("alice", "b")), produced_bytes=60_000, broker_id="1")
    kept.use(*hour_of(("alice", "a")), produced_bytes=180_000, broker_id="2")
    (row,) = rows_of(kept)
    assert (row["p99"], row["sensors"]) == (3_000.0, 1)


def test_a_default_shows_its_busiest_sensor(kept: KeptMinutes) -> None:
    kept.quota("<default>", consumer_byte_rate=1e6)
    kept.use((0, "alice", "a"), fetched_bytes=60_000)
    kept.use((0, "bob", "a"), fetched_bytes=180_000)
    (row,) = rows_of(kept)
    assert (row["user"], row["quota_type"], row["sensors"], row["p99"]) == ("<default>", FETCHED, 2, 3_000.0)


def test_request_time_is_in_percent_of_one_thread(kept: KeptMinutes) -> None:
    kept.quota("alice", request_percentage=50.0)
    kept.use((0, "alice", "a"), io_time_ns=9 * 10**9, network_time_ns=6 * 10**9)
    (row,) = rows_of(kept)
    assert row["p99"] == pytest.approx(25.0)


def test_an_unused_bound_is_told_and_an_exempt_row_has_none(kept: KeptMinutes) -> None:
    kept.quota("alice", producer_byte_rate=5.0)
    kept.quota("carol", producer_byte_rate=5.0, mode="exempt")
    kept.use((0, "bob", "a"), produced_bytes=1)
    (row,) = rows_of(kept)
    assert (row["user"], row["advice"], row["suggested"]) == ("alice", "unused", None)


def test_the_candidate_has_all_quotas_and_what_if_takes_it(kept: KeptMinutes, tmp_path: Path) -> None:
    kept.quota("alice", producer_byte_rate=1e6, consumer_byte_rate=77.0, owner="one", note="keep")
    kept.quota("<default>", producer_byte_rate=1e6)
    kept.quota("dora", producer_byte_rate=9.0, mode="shadow")
    kept.use(*hour_of(("alice", "a"), ("erin", "a")), produced_bytes=60_000)
    candidate = tmp_path / "candidate.yaml"
    told = report(kept, "--candidate", str(candidate)).stderr
    assert f"written: {candidate}, 1 bounds changed; try it: " in told
    assert "a candidate keeps its bound" in told
    diff = kquota("quotas", "apply", "-f", str(candidate), "--prune", "--dry-run", "-o", "json", "--tables", kept.root)
    assert diff.exit_code == 0, diff.stderr
    assert [change["user"] for change in json.loads(diff.stdout)["changes"]] == ["alice"]
    assert '"producer_byte_rate"' not in candidate.read_text()
    assert "values: '1200'" in candidate.read_text(encoding="utf-8")
    refused = kquota("what-if", "-f", str(candidate), *SPAN, "--tables", kept.root)
    assert refused.exit_code == 3, "the candidate is read; there is no usage_by_second to replay"
