"""The views of throttles, against plain Python over the raw rows."""

import re
from collections import Counter, defaultdict
from typing import Any

import pytest

from pipeline.clock import wall_ms
from pipeline.tables.throttles import running_throttles
from schemas.throttle_record import verb, written_ms
from tests.deploy.raw_rows import MINUTE_MS, day_of, set_of
from tests.deploy.written_tables import Row, Written

pytestmark = pytest.mark.spark


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
