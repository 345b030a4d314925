"""What is told after restarts, kills and trouble: nothing is lost, and little comes twice."""

from pathlib import Path

import pytest

from pipeline.alerts.alerter import own_state, read_state, state_path
from pipeline.errors import Conflict
from tests.pipeline.alerts.alerted_tables import live, over_quota, tables_of
from tests.pipeline.alerts.receiving import Inbox, receiving
from tests.pipeline.alerts.told import Told


def test_a_restart_tells_nothing_again_and_ends_what_ended_meanwhile(tmp_path: Path, inbox: Inbox) -> None:
    tables = tables_of(tmp_path, over_quota("alice", seconds=3))
    live(tables, Told(tables.root, tmp_path, {"ops": inbox.url}, pending_ms=600_000), 4)
    assert inbox.alerts() == [("KquotaThrottled", "alice", "firing")]
    live(tables, Told(tables.root, tmp_path, {"ops": inbox.url}, pending_ms=600_000), 3)
    assert inbox.alerts() == [("KquotaThrottled", "alice", "firing")]
    tables.live(45, step_ms=3_000)
    live(tables, Told(tables.root, tmp_path, {"ops": inbox.url}, pending_ms=600_000), 15, step=5)
    assert inbox.alerts() == [("KquotaThrottled", "alice", "firing"), ("KquotaThrottled", "alice", "resolved")]


def test_what_a_killed_process_had_not_sent_is_sent_by_the_next_one(tmp_path: Path, inbox: Inbox) -> None:
    tables = tables_of(tmp_path, over_quota("alice"))
    tables.live(3)
    Told(tables.root, tmp_path, {"ops": inbox.url}).look(tables.now_ms, send=False)
    assert inbox.requests == []
    second = Told(tables.root, tmp_path, {"ops": inbox.url})
    second.send()
    assert ("KquotaThrottled", "alice", "firing") in inbox.alerts()


def test_a_process_killed_after_it_sent_sends_the_same_again(tmp_path: Path, inbox: Inbox) -> None:
    tables = tables_of(tmp_path, over_quota("alice"))
    tables.live(3)
    Told(tables.root, tmp_path, {"ops": inbox.url}).look(tables.now_ms)  # and dies before it notes that it has
    Told(tables.root, tmp_path, {"ops": inbox.url}).send()
    first, again = inbox.taken
    assert first == again


def test_a_receiver_that_is_down_keeps_no_other_waiting_and_gets_all_of_it_later(tmp_path: Path, inbox: Inbox) -> None:
    tables = tables_of(tmp_path, over_quota("alice", seconds=3))
    steady = [0.0]
    with receiving() as other:
        other.answers = [500] * 10_000
        told = Told(tables.root, tmp_path, {"ops": inbox.url, "other": other.url}, steady_seconds=lambda: steady[0])
        live(tables, told, 40, step=4)
        assert ("KquotaThrottled", "alice", "resolved") in inbox.alerts()
        assert len(other.requests) == 1, "it rests between two tries"
        assert told.metric("waiting_messages", receiver="other") == len(inbox.taken)
        other.answers, other.requests = [], []
        while told.deliveries[1].waiting():
            steady[0] += 60
            told.send()
        assert other.alerts() == inbox.alerts()
        assert [{**one, "receiver": ""} for one in other.taken] == [{**one, "receiver": ""} for one in inbox.taken]


def test_a_damaged_state_is_set_aside_and_said(tmp_path: Path, inbox: Inbox, caplog: pytest.LogCaptureFixture) -> None:
    tables = tables_of(tmp_path, over_quota("alice"))
    path = state_path(Told(tables.root, tmp_path, {"ops": inbox.url}).settings)
    path.write_text('{"version": 1, "watched": [{"key"', encoding="utf-8")
    live(tables, Told(tables.root, tmp_path, {"ops": inbox.url}), 4)
    assert "is not the state of alerts" in caplog.text
    assert path.with_name("shop.alerts.json.damaged").read_text().startswith('{"version": 1')
    assert ("KquotaThrottled", "alice", "firing") in inbox.alerts()
    assert read_state(path).book


def test_a_state_that_can_not_be_written_is_counted_and_alerts_go_out(tmp_path: Path, inbox: Inbox) -> None:
    tables = tables_of(tmp_path, over_quota("alice"))
    told = Told(tables.root, tmp_path, {"ops": inbox.url})
    (tmp_path / "shop.alerts.json.new").mkdir()
    live(tables, told, 4)
    assert told.metric("state_failures_total") > 0
    assert ("KquotaThrottled", "alice", "firing") in inbox.alerts()


def test_a_look_that_fails_is_made_again_and_changes_nothing(
    tmp_path: Path, inbox: Inbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tables = tables_of(tmp_path, over_quota("alice"))
    told = Told(tables.root, tmp_path, {"ops": inbox.url}, pending_ms=600_000, resolve_after_ms=0)
    live(tables, told, 4)
    with monkeypatch.context() as broken:
        broken.setattr("pipeline.alerts.alerter.facts_of", lambda *_arguments: 1 / 0)
        told.look(tables.now_ms)
    assert "could not be evaluated; it is retried" in caplog.text
    live(tables, told, 1)
    assert inbox.alerts() == [("KquotaThrottled", "alice", "firing")]


def test_two_processes_do_not_tell_the_same_alerts(tmp_path: Path, inbox: Inbox) -> None:
    told = Told(str(tmp_path), tmp_path, {"ops": inbox.url})
    path = state_path(told.settings)
    with own_state(path), pytest.raises(Conflict, match=r"stop that process"), own_state(path):
        pass
