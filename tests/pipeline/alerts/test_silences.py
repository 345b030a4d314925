"""Silences: one alert is not sent until an end, others are, and what still is so then is sent."""

from pathlib import Path

import pytest

from pipeline.alerts.alerter import read_silences, silence, silences_path
from pipeline.errors import UsageError
from tests.pipeline.alerts.alerted_tables import live, over_quota, tables_of
from tests.pipeline.alerts.receiving import Inbox
from tests.pipeline.alerts.told import Told
from tests.pipeline.cli.running import kquota
from tests.pipeline.dashboard.shop import START_MS

NAME = "6f1d0b6c6b8a2f7e"
HOUR_MS = 3_600_000


def throttled(inbox: Inbox) -> list[tuple[str, str]]:
    return [(user, status) for alert, user, status in inbox.alerts() if alert == "KquotaThrottled"]


def test_a_silenced_alert_is_not_sent_again_until_the_end_and_others_are(tmp_path: Path, inbox: Inbox) -> None:
    tables = tables_of(tmp_path, over_quota("alice"), over_quota("bob"))
    told = Told(tables.root, tmp_path, {"ops": inbox.url}, repeat_ms=5_000)
    live(tables, told, 4)
    alice, bob = (("alice", "firing"), ("bob", "firing"))
    assert sorted(set(throttled(inbox))) == [alice, bob]
    (name,) = {alert["fingerprint"] for message in inbox.taken for alert in message["alerts"]
               if alert["labels"].get("user") == "alice"}  # fmt: skip
    about, end_ms = silence(told.settings, name, 20_000, tables.now_ms)
    assert about is not None
    assert about.annotations["summary"].startswith("alice/etl is throttled")
    before = throttled(inbox).count(alice)
    live(tables, told, 18)
    assert throttled(inbox).count(alice) == before
    assert throttled(inbox).count(bob) > 2
    live(tables, told, 4)
    assert tables.now_ms > end_ms
    assert throttled(inbox).count(alice) == before + 1


def test_an_alert_that_begins_in_silence_is_sent_at_its_end_with_its_own_begin(tmp_path: Path, inbox: Inbox) -> None:
    tables = tables_of(tmp_path, over_quota("alice"))
    first = Told(tables.root, tmp_path / "first", {"ops": inbox.url})
    live(tables, first, 4)
    (name,) = {alert["fingerprint"] for alert in inbox.taken[0]["alerts"]}
    inbox.requests.clear()
    told = Told(tables.root, tmp_path / "second", {"ops": inbox.url})
    begin_ms = tables.now_ms
    silence(told.settings, name, 10_000, begin_ms)
    live(tables, told, 9)
    assert throttled(inbox) == []
    live(tables, told, 3)
    assert throttled(inbox) == [("alice", "firing")]


def test_a_firing_alert_has_the_command_that_silences_it_and_an_ended_one_has_none(
    tmp_path: Path, inbox: Inbox
) -> None:
    tables = tables_of(tmp_path, over_quota("alice", seconds=3))
    told = Told(tables.root, tmp_path, {"ops": inbox.url}, runbook_url="https://wiki.example/runbook.md")
    live(tables, told, 4)
    live(tables, told, 45, step=3)
    begin, end = (alert for message in inbox.taken for alert in message["alerts"]
                  if alert["labels"]["alertname"] == "KquotaThrottled")  # fmt: skip
    assert begin["annotations"]["silence"].endswith(f" alerts silence {begin['fingerprint']} --for 4h")
    assert "silence" not in end["annotations"]
    assert begin["annotations"]["runbook_url"] == "https://wiki.example/runbook.md#kquotathrottled"


def test_a_silence_ends_at_its_end_exclusive(tmp_path: Path) -> None:
    told = Told(str(tmp_path / "none"), tmp_path, {"ops": "http://127.0.0.1:1"})
    silence(told.settings, NAME, HOUR_MS, START_MS)
    path = silences_path(told.settings)
    ends = {
        at_ms: NAME in read_silences(path, at_ms) for at_ms in (START_MS, START_MS + HOUR_MS - 1, START_MS + HOUR_MS)
    }
    assert [*ends.values()] == [True, True, False]
    silence(told.settings, NAME, 0, START_MS)
    assert read_silences(path, START_MS) == {}


@pytest.mark.parametrize("text", ["", "[]", '{"a": "b"}', '{"a": null}', "\ufeff{}"])
def test_a_damaged_file_silences_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "shop.alerts.silences.json"
    path.write_text(text, encoding="utf-8")
    assert read_silences(path, START_MS) == {}


@pytest.mark.parametrize(
    ("name", "span_ms", "why"),
    [
        ("6F1D0B6C6B8A2F7E", HOUR_MS, "is not the fingerprint of an alert"),
        ("KquotaThrottled", HOUR_MS, "is not the fingerprint of an alert"),
        (NAME, 31 * 24 * HOUR_MS, "a silence of 31 d is longer than 30 d"),
    ],
)
def test_what_names_no_alert_and_what_has_no_near_end_is_refused(
    tmp_path: Path, name: str, span_ms: int, why: str
) -> None:
    told = Told(str(tmp_path / "none"), tmp_path, {"ops": "http://127.0.0.1:1"})
    with pytest.raises(UsageError, match=why):
        silence(told.settings, name, span_ms, START_MS)


def test_the_command_says_until_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KQUOTA_RUN_DIR", str(tmp_path))
    monkeypatch.setattr("pipeline.cli.services.wall_ms", lambda: START_MS)
    answer = kquota("alerts", "silence", NAME, "--for", "4h")
    assert (answer.exit_code, answer.stdout) == (0, f"{NAME} is silenced until 2023-11-15T02:14:00 UTC\n")
    assert kquota("alerts", "silence", NAME, "--for", "0m").stdout == f"{NAME} is no longer silenced\n"
    assert kquota("alerts", "silence", NAME, "--for", "tomorrow").exit_code == 2
