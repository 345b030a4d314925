"""The verdict of the view Now is one sentence."""

from typing import Any

import pytest

from pipeline.dashboard.state import collapsed, gauges, nearest_tenants, standing, tenant_row, used_text, verdict
from quota.tenants import Tenant

VERDICT_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("used", "mode", "expected"),
    [
        (None, "enforce", "unused"),
        (0.0, "enforce", "unused"),
        (0.799, "enforce", "within"),
        (0.8, "enforce", "near"),
        (1.0, "enforce", "near"),
        (1.001, "enforce", "over"),
        (5.0, "shadow", "shadow"),
    ],
)
def test_from_four_fifths_of_its_bound_on_a_rate_is_near(used: float | None, mode: str, expected: str) -> None:
    assert standing(used, mode) == expected


@pytest.mark.parametrize(
    ("used", "text"),
    [(0.0, "0 %"), (0.999, "99 %"), (1.0, "100 %"), (1.04, "104 %"), (1.26, "126 %"), (5.0, "5 ×"), (31.4, "31 ×")],
)
def test_what_is_used_is_cut_off_and_never_rounded_up(used: float, text: str) -> None:
    assert used_text(used) == text


def held(client_id: str | None, left_ms: int, most_used: float | None) -> dict[str, Any]:
    return {"user": "alice", "client_id": client_id, "throttled_until_ms": VERDICT_MS + left_ms, "most_used": most_used}


def rate(client_id: str, share: float, mode: str = "enforce") -> dict[str, Any]:
    return {"user": "erp", "client_id": client_id, "share": share, "mode": mode}


ETL, LOADER, USER = held("etl", 36_400, 5.0), held("", 2_000, 1.2), held(None, 3_000, 2.0)
EXPORTER, SHADOW = rate("exporter", 0.997), rate("train", 1.8, "shadow")


@pytest.mark.parametrize(
    ("throttled", "sensors", "kind", "text"),
    [
        ([ETL], [EXPORTER], "held", "kquota holds 1 client: alice/etl, 36 s left, 5 × its quota"),
        ([LOADER, ETL], [], "held", "kquota holds 2 clients; most over is alice/etl, 36 s left, 5 × its quota"),
        ([USER] * 2, [], "held", "kquota holds 1 user: alice/*, 3 s left, 2 × its quota"),
        ([ETL, USER], [], "held", "kquota holds 1 user and 1 client; most over is alice/etl, 36 s left, 5 × its quota"),
        ([LOADER], [], "held", "kquota holds 1 client: alice, 2 s left, 120 % of its quota"),
        ([held("etl", 500, None)], [], "held", "kquota holds 1 client: alice/etl, 1 s left"),
        ([], [EXPORTER], "near", "all within their quotas; nearest: erp/exporter 99 %"),
        ([], [rate("exporter", 0.5)], "within", "all within their quotas; nearest: erp/exporter 50 %"),
        ([], [SHADOW, EXPORTER], "near", "all within their quotas; nearest: erp/exporter 99 %"),
        ([], [rate("x", 1.3)], "over", "kquota holds no client; over its quota for a moment: erp/x 130 %"),
        ([], [SHADOW], "within",
         "no quota is enforced here, all are in shadow mode; nearest: erp/train 180 %"),
        ([], [], "none", "no client used anything under a quota lately"),
    ],
)  # fmt: skip
def test_the_verdict_is_one_sentence(
    throttled: list[dict[str, Any]], sensors: list[dict[str, Any]], kind: str, text: str
) -> None:
    assert verdict(VERDICT_MS, throttled, sensors) == {"kind": kind, "text": text}


def test_records_are_one_row_per_client() -> None:
    rows = [{"broker_id": "", "user": "u", "client_id": name, "at_ms": at} for name, at in
            [("a", 9), ("b", 8), ("a", 7), ("a", 5)]]  # fmt: skip
    shown = [(row["client_id"], row["at_ms"], row["records"], row["first_ms"]) for row in collapsed(rows)]
    assert shown == [("a", 9, 3, 5), ("b", 8, 1, 8)]


@pytest.mark.parametrize(
    ("name", "changed", "expected"),
    [
        ("age", {"age_ms": 5_000}, "good"),
        ("age", {"age_ms": 5_001}, "bad"),
        ("age", {"age_ms": None}, "unknown"),
        ("delay", {"delay_ms": 5_001}, "bad"),
        ("delay", {"ahead_ms": 1}, "bad"),
        ("events", {}, "good"),
        ("events", {"late": 1}, "bad"),
        ("events", {"events_per_second": None}, "unknown"),
        ("punctuality", {"late_p99_ms": 50}, "good"),
        ("punctuality", {"late_p99_ms": 51}, "bad"),
        ("unreadable", {"unreadable": 1}, "bad"),
        ("held", {"held": 900}, "unknown"),
    ],
)
def test_a_figure_of_the_pipeline_is_on_its_target_or_not(name: str, changed: dict[str, Any], expected: str) -> None:
    good = {"age_ms": 800, "delay_ms": 300, "ahead_ms": 0, "late": 0, "held": 3, "late_p99_ms": 4, "unreadable": 0}
    figures = gauges(**{"events_per_second": 5.0, **good, **changed})
    assert {one["name"]: one["standing"] for one in figures}[name] == expected


TEAM = Tenant("team-a", ("alice",), (), (10e6, None, None), (1e6, None, None), lend=True)
IDLE = Tenant("team-b", ("eve",), (), (None, 5e6, None), (None, 5e5, None), mode="shadow")


def used_by_team(used: float, level: float | None, members: int = 2) -> dict[str, Any]:
    of = {"tenant": "team-a", "quota_type": "producer_byte_rate", "broker_id": "", "mode": "enforce"}
    share = used / 10e6
    figures = {"bound": 10e6, "share": share, "is_at_bound": level is not None and (level < 1 or share >= 0.9)}
    return {**of, **figures, "used": used, "members": members, "held": 0, "tenant_level": level}


def member(user: str, observed: float, own_bound: float = 1e6, bound: float = 4e6) -> dict[str, Any]:
    of = {"tenant": "team-a", "quota_type": "producer_byte_rate", "broker_id": "", "mode": "enforce", "level": 3}
    sensor = {"sensor_user": user, "sensor_client_id": "", "bound": bound, "held_until_ms": None}
    return {**of, **sensor, "observed": observed, "own_bound": own_bound}


@pytest.mark.parametrize(
    ("used", "level", "members", "text"),
    [
        (3e6, None, [member("a", 3e5), member("b", 5e5)], "team-a uses 3.0 MB/s of its 10.0 MB/s: all that"),
        (3e6, None, [member("a", 3e6), member("b", 5e5)], "team-a lends a 2.0 MB/s that b leaves free: it uses 3.0 ×"),
        (9e6, 3.5, [member("a", 8e6, 2e6)], "team-a lends a 2.0 MB/s that others leave free: it uses 2.0 ×"),
        (6e6, None, [member("a", 6e6, 2e6, 2e6)], "team-a uses 6.0 MB/s of its 10.0 MB/s: all that its members"),
        (9e6, None, [member("a", 2e6, 2e6)], "team-a is nearly full: it uses 9.0 MB/s of its 10.0 MB/s"),
        (4e5, 1.3, [member("a", 2e5, 2e6)], "team-a uses 400.0 kB/s of its 10.0 MB/s: all that its members"),
        (9e6, 0.5, [member("a", 8e6)], "team-a is at its bound: its members want more than 10.0 MB/s, and have"),
        (9e6, 1.0, [member("a", 1e6)], "team-a is at its bound: its members want more than 10.0 MB/s, and have"),
    ],
)  # fmt: skip
def test_how_a_tenant_s_members_share_its_bound_is_one_sentence(
    used: float, level: float | None, members: list[dict[str, Any]], text: str
) -> None:
    fullest, _ = nearest_tenants([used_by_team(used, level)], [IDLE, TEAM])
    found = tenant_row(fullest, members)
    assert found["text"].startswith(text)
    assert [one["borrowed"] for one in found["shown"]] == [
        max(min(one["observed"], one["bound"]) - one["own_bound"], 0) for one in members
    ]


def test_the_fullest_tenant_is_first_and_one_without_usage_last() -> None:
    found = nearest_tenants([used_by_team(9e6, None)], [IDLE, TEAM])
    assert nearest_tenants([used_by_team(8.9e6, None)], [TEAM])[0]["standing"] == "within"
    assert [(row["tenant"], row["standing"]) for row in found] == [("team-a", "near"), ("team-b", "shadow")]
    assert tenant_row(found[1], [])["text"] == "no member of team-b uses anything"
