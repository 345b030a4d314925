import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UsageError
from pipeline.reports.service_level import Held, Target
from tests.pipeline.cli.running import Answer, kquota
from tests.pipeline.reports.minutes_kept import KeptMinutes

WEEK_MS = 7 * 86_400_000
SPAN = ("--since", "2026-11-22T00:00:00", "--until", "2026-12-07T00:00:00")


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("30m", 30), ("2h", 120), ("1d", 1440), ("0m", 0), ("1.5h", 90), ("99.9%", 10.08), ("100 %", 0), ("0%", 10_080)],
)
def test_a_target_is_a_time_throttled_or_a_share_not_throttled(text: str, minutes: float) -> None:
    assert Target.parse(text).minutes_in(WEEK_MS) == minutes


@pytest.mark.parametrize("text", ["", "30", "30s", "-1m", "100.1%", "99,9%", "inf%"])
def test_another_target_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="for example --target 30m"):
        Target.parse(text)


@pytest.fixture
def kept(tmp_path: Path) -> KeptMinutes:
    kept = KeptMinutes.create(tmp_path)
    kept.use(*((minute, user, "") for minute in (-60, 0, 10_080) for user in ("alice", "bob")))
    return kept


def report(kept: KeptMinutes, *words: str) -> Answer:
    answer = kquota("report", "slo", *SPAN, *words, "--tables", kept.root)
    assert answer.exit_code == 0, answer.stderr
    return answer


def test_a_minute_counts_once_if_the_client_was_held_in_it_for_any_time(kept: KeptMinutes) -> None:
    kept.hold((0, "alice", "", 1), (0, "alice", "", 2_000), (1, "alice", "", 60_000), broker_id="1")
    kept.hold((1, "alice", "", 60_000), broker_id="2", throttle_count=2, renewal_count=3)
    kept.hold((2, "alice", "", 0), throttle_count=1)
    (row,) = json.loads(report(kept, "--target", "2m", "-o", "json").stdout)
    assert (row["minutes"], row["held_seconds"], row["throttles"], row["renewals"]) == (2, 122.001, 3, 3)
    assert (row["period"], row["target"], row["target_minutes"]) == ("2026-W48", "met", 2)
    assert (row["observed_minutes"], row["projected_minutes"]) == (10_080, 2)


@pytest.mark.parametrize(
    ("minutes", "observed", "allowed", "standing"),
    [
        (8, 8, 10, "missed"),
        (0, 1_007, 10, "too little data"),
        (0, 1_008, 10, "met"),
        (1, 1_007, 10, "missed"),
        (1, 1_007, 11, "too little data"),
        (1, 1_008, 10, "met"),
        (1, 1_008, 9, "missed"),
        (10, 10_080, 10, "met"),
        (11, 10_080, 10, "missed"),
    ],
)
def test_what_was_seen_is_projected_to_the_whole_period(
    minutes: int, observed: int, allowed: float, standing: str
) -> None:
    counts: dict[str, Any] = {
        "minutes": minutes,
        "observed_minutes": observed,
        "period_minutes": 10_080,
        "allowed_minutes": allowed,
    }
    held = Held("2026-W48", "alice", "", None, **counts, held_ms=0, throttle_count=0, renewal_count=0)
    assert held.standing == standing


def test_eight_of_eight_minutes_are_not_within_a_week_s_allowance(tmp_path: Path) -> None:
    kept = KeptMinutes.create(tmp_path)
    kept.use(*((minute, "alice", "etl") for minute in range(8)))
    kept.hold(*((minute, "alice", "etl", 500) for minute in range(8)))
    shown = report(kept, "--target", "10m").stdout.splitlines()
    assert shown[1].split() == [
        "2026-W48", "alice", "etl", "8", "of", "8", "10,080", "of", "10", "missed", "4", "s", "0",
    ]  # fmt: skip


def test_a_few_minutes_without_a_throttle_do_not_meet_a_week_s_target(tmp_path: Path) -> None:
    kept = KeptMinutes.create(tmp_path)
    kept.use((0, "alice", ""), (1_006, "alice", ""))
    told = report(kept, "--target", "10m").stdout
    assert told == "0 of 1 clients were throttled; too little data for the target 10m a week\n"
    kept.use((1_007, "alice", ""))
    assert report(kept, "--target", "10m").stdout.endswith("all clients met the target 10m a week\n")


@pytest.mark.parametrize(
    ("target", "answer"), [("2m", "met"), ("1m", "missed"), ("99.99%", "missed"), ("99.9%", "met")]
)
def test_at_the_target_it_is_met(kept: KeptMinutes, target: str, answer: str) -> None:
    kept.hold((0, "alice", "", 1), (1, "alice", "", 1))
    (row,) = json.loads(report(kept, "--target", target, "-o", "json").stdout)
    assert row["target"] == answer


def test_each_week_is_a_row_and_the_sentence_counts_clients(kept: KeptMinutes) -> None:
    kept.hold((-60, "alice", "", 1_000), (0, "alice", "", 1_000), (0, "bob", "", 1_000), (1, "bob", "", 1_000))
    answer = report(kept, "--target", "1m")
    assert [line.split()[:2] for line in answer.stdout.splitlines()[1:4]] == [
        ["2026-W47", "alice"],
        ["2026-W48", "bob"],
        ["2026-W48", "alice"],
    ]
    assert answer.stdout.endswith("2 of 2 clients were throttled; 2 missed the target 1m a week\n")


def test_the_owner_is_the_last_one_or_the_one_of_now(kept: KeptMinutes) -> None:
    kept.quota("bob", mode="exempt", owner="dana")
    kept.hold((0, "alice", "", 1), owner="one")
    kept.hold((5, "alice", "", 1), owner="two")
    kept.hold((0, "bob", "", 1))
    rows = json.loads(report(kept, "--target", "1h", "-o", "json").stdout)
    assert [(row["user"], row["owner"]) for row in rows] == [("alice", "two"), ("bob", "dana")]


def test_nobody_throttled_is_an_answer(kept: KeptMinutes, tmp_path: Path) -> None:
    page = tmp_path / "slo.html"
    answer = report(kept, "--target", "1h", "--html", str(page))
    assert answer.stdout == "0 of 2 clients were throttled; all clients met the target 1h a week\n"
    assert "No client was throttled." in page.read_text(encoding="utf-8")
