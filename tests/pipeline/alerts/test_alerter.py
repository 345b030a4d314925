"""From real tables to a real HTTP server: what is told, to whom, and once."""

from collections import Counter
from pathlib import Path

import pytest

from tests.pipeline.alerts.alerted_tables import live, over_quota, tables_of
from tests.pipeline.alerts.receiving import Inbox
from tests.pipeline.alerts.told import Told
from tests.pipeline.dashboard.lived_tables import HOSTILE, Sender
from tests.pipeline.dashboard.shop import START_MS


def test_a_throttle_is_told_once_when_it_begins_and_once_when_it_has_ended(tmp_path: Path, inbox: Inbox) -> None:
    tables = tables_of(tmp_path, over_quota("alice", seconds=3))
    told = Told(tables.root, tmp_path, {"ops": inbox.url})
    live(tables, told, 8)
    assert Counter(inbox.alerts())["KquotaThrottled", "alice", "firing"] == 1
    live(tables, told, 45, step=3)
    of_throttle = [alert for alert in inbox.alerts() if alert[0] == "KquotaThrottled"]
    assert of_throttle == [("KquotaThrottled", "alice", "firing"), ("KquotaThrottled", "alice", "resolved")]
    begin, end = (
        alert for message in inbox.taken for alert in message["alerts"]
        if alert["labels"]["alertname"] == "KquotaThrottled"
    )  # fmt: skip
    assert begin["fingerprint"] == end["fingerprint"]
    assert begin["startsAt"] == end["startsAt"] < end["endsAt"]
    assert begin["endsAt"] == "0001-01-01T00:00:00Z"
    assert told.metric("firing", alertname="KquotaThrottled") == 0
    assert told.metric("sent_total", receiver="ops") == len(inbox.alerts())


def test_the_message_is_that_of_alertmanager(tmp_path: Path, inbox: Inbox) -> None:
    tables = tables_of(tmp_path, over_quota("alice"))
    told = Told(tables.root, tmp_path, {"ops": inbox.url}, external_url="https://board.example/")
    live(tables, told, 4)
    message = inbox.taken[0]
    assert set(message) == {
        "receiver", "status", "alerts", "groupLabels", "commonLabels", "commonAnnotations", "externalURL", "version",
        "groupKey", "truncatedAlerts",
    }  # fmt: skip
    assert (message["version"], message["receiver"], message["status"]) == ("4", "ops", "firing")
    assert message["groupKey"] == 'kquota-shop:{owner="data-platform"}'
    assert message["groupLabels"] == {"owner": "data-platform"}
    (alert,) = message["alerts"]
    assert set(alert) == {"status", "labels", "annotations", "startsAt", "endsAt", "generatorURL", "fingerprint"}
    assert alert["labels"] == message["commonLabels"] == {
        "alertname": "KquotaThrottled", "severity": "warning", "cluster": "test", "user": "alice", "client_id": "etl",
        "quota_type": "producer_byte_rate", "owner": "data-platform",
    }  # fmt: skip
    assert alert["annotations"]["summary"].startswith("alice/etl is throttled for its producer_byte_rate: ")
    assert " throttles explain " in alert["annotations"]["action"]
    assert alert["generatorURL"] == "https://board.example/client?user=alice&client_id=etl"
    assert len(alert["fingerprint"]) == 16
    assert alert["startsAt"].endswith("Z")


def test_alerts_of_one_look_are_grouped_by_the_owner_of_the_quota(tmp_path: Path, inbox: Inbox) -> None:
    senders = [over_quota(user) for user in ("alice", "bob", "web", "guest")]
    tables = tables_of(tmp_path, *senders)
    told = Told(tables.root, tmp_path, {"ops": inbox.url})
    tables.live(4)
    told.look(tables.now_ms)
    groups = {
        message["groupLabels"].get("owner"): {alert["labels"]["user"] for alert in message["alerts"]}
        for message in inbox.taken
    }
    assert groups == {"data-platform": {"alice", "bob"}, "web": {"web"}, None: {"guest"}}
    assert len(inbox.taken) == 3
    assert Counter(message["truncatedAlerts"] for message in inbox.taken) == {0: 3}


def test_the_status_is_that_of_the_whole_group_though_only_changes_are_listed(tmp_path: Path, inbox: Inbox) -> None:
    tables = tables_of(tmp_path, over_quota("alice", seconds=3), over_quota("bob"))
    told = Told(tables.root, tmp_path, {"ops": inbox.url}, pending_ms=600_000)
    live(tables, told, 60, step=3)
    last = inbox.taken[-1]
    assert [(alert["labels"]["user"], alert["status"]) for alert in last["alerts"]] == [("alice", "resolved")]
    assert (last["status"], last["truncatedAlerts"]) == ("firing", 1)


def test_a_client_near_its_bound_is_told_after_a_while_and_does_not_flap(tmp_path: Path, inbox: Inbox) -> None:
    # Over windows of 10 s its rate goes up and down across 80 % of its quota, and never below 75 %.
    rates = Sender("web", "tracker", lambda s: {"produced_bytes": 0 if s >= 48 else 76_000 if s % 24 < 12 else 69_500})
    tables = tables_of(tmp_path, rates)
    told = Told(tables.root, tmp_path, {"ops": inbox.url}, pending_ms=3_000, resolve_after_ms=0)
    used = []
    for _ in range(16):
        tables.live(3)
        told.look(tables.now_ms)
        used.append(told.facts_at(tables.now_ms).findings)
    (first,) = [alert for message in inbox.taken for alert in message["alerts"]]
    assert first["labels"]["alertname"] == "KquotaNearBound"
    assert first["annotations"]["summary"].startswith("web/* uses 8")
    assert {finding.is_so for found in used[6:] for finding in found} == {True, False}, "it crosses 80 %"
    tables.live(20, step_ms=4_000)
    told.look(tables.now_ms)
    told.look(tables.now_ms)
    assert inbox.alerts() == [("KquotaNearBound", "web", "firing"), ("KquotaNearBound", "web", "resolved")]


def test_a_shadow_quota_alerts_nobody(tmp_path: Path, inbox: Inbox) -> None:
    tables = tables_of(tmp_path, Sender("ml", "train", lambda _: {"fetched_bytes": 90_000}))
    told = Told(tables.root, tmp_path, {"ops": inbox.url}, pending_ms=0)
    live(tables, told, 12, step=3)
    assert inbox.requests == []


def test_what_goes_on_is_told_again_after_the_repeat_interval(tmp_path: Path, inbox: Inbox) -> None:
    tables = tables_of(tmp_path, over_quota("alice"))
    told = Told(tables.root, tmp_path, {"ops": inbox.url}, repeat_ms=4_000, pending_ms=600_000)
    live(tables, told, 12)
    assert inbox.alerts() == [("KquotaThrottled", "alice", "firing")] * 3
    assert len({alert["startsAt"] for message in inbox.taken for alert in message["alerts"]}) == 1


def test_refused_messages_are_told_even_if_nobody_looked_then(tmp_path: Path, inbox: Inbox) -> None:
    tables = tables_of(tmp_path)
    tables.send_garbage()
    tables.live(200, step_ms=10_000)
    told = Told(tables.root, tmp_path, {"ops": inbox.url})
    told.look(tables.now_ms)
    (alert,) = inbox.taken[0]["alerts"]
    assert alert["labels"]["alertname"] == "KquotaDeadLetters"
    assert alert["annotations"]["summary"] == "2 usage events or messages were refused in 5 min"
    live(tables, told, 150, step=10)
    assert [status for *_, status in inbox.alerts()] == ["firing", "resolved"]


@pytest.mark.parametrize(("is_idle", "expected"), [(False, ["firing"]), (True, [])])
def test_a_job_without_batches_is_told_unless_it_waits_for_usage(
    is_idle: bool, expected: list[str], tmp_path: Path, inbox: Inbox
) -> None:
    tables = tables_of(tmp_path)
    tables.live(2)
    told = Told(tables.root, tmp_path, {"ops": inbox.url}, is_idle=is_idle)
    told.look(tables.now_ms + 60_000)
    assert inbox.requests == []
    told.look(tables.now_ms + 60_001)
    assert [status for name, _, status in inbox.alerts() if name == "KquotaStalled"] == expected
    tables.job.clock.advance(120_000)
    live(tables, told, 20, step=5)
    assert [status for *_, status in inbox.alerts()] == [*expected, *(["resolved"] if expected else [])]


def test_while_no_batch_comes_nothing_is_said_about_rates(tmp_path: Path, inbox: Inbox) -> None:
    tables = tables_of(tmp_path, Sender("web", "tracker", lambda _: {"produced_bytes": 88_000}))
    told = Told(tables.root, tmp_path, {"ops": inbox.url}, pending_ms=0, resolve_after_ms=0)
    tables.live(13)
    told.look(tables.now_ms)
    assert {name for name, *_ in inbox.alerts()} == {"KquotaNearBound", "KquotaAtBound"}
    count = len(inbox.alerts())
    told.look(tables.now_ms + 50_000)
    assert len(inbox.alerts()) == count


def test_tables_that_are_missing_are_told_as_a_pipeline_that_does_not_work(tmp_path: Path, inbox: Inbox) -> None:
    told = Told(str(tmp_path / "nothing"), tmp_path, {"ops": inbox.url})
    told.look(START_MS)
    told.look(START_MS + 59_999)
    assert inbox.requests == []
    told.look(START_MS + 60_000)
    assert inbox.alerts() == [("KquotaStalled", "", "firing")]
    assert "nothing" in inbox.taken[0]["alerts"][0]["annotations"]["description"]
    assert inbox.taken[0]["groupLabels"] == {}


def test_hostile_names_are_escaped_and_cut_and_stay_apart(tmp_path: Path, inbox: Inbox) -> None:
    long = "\x1b[2J" + "n" * 20_000
    names = [HOSTILE, "a\nb\u202e", f"{long}1", f"{long}2"]
    tables = tables_of(tmp_path, *(over_quota("guest", name) for name in names))
    told = Told(tables.root, tmp_path, {"ops": inbox.url}, external_url="https://board.example", pending_ms=600_000)
    live(tables, told, 4)
    alerts = [alert for message in inbox.taken for alert in message["alerts"]]
    assert len({alert["fingerprint"] for alert in alerts}) == len(alerts) == 4
    shown = {alert["labels"]["client_id"] for alert in alerts}
    assert {HOSTILE, r"a\nb\u202e"} < shown
    texts = [text for alert in alerts for part in ("labels", "annotations") for text in alert[part].values()]
    assert all(text.isprintable() and len(text) < 400 for text in texts)
