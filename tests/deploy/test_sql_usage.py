"""The views of usage, owners and bounds, against plain Python over the raw rows."""

from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from quota.engine import QuotaEngine
from quota.snapshot import QuotaSnapshot
from tests.deploy.raw_rows import MINUTE_MS, complete_usage, day_of, owners, set_of, summed, told, used
from tests.deploy.written_tables import Row, Written

pytestmark = pytest.mark.spark


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
    names: dict[str, Callable[[date], str]] = {
        "day": lambda day: day.isoformat(),
        "week": lambda day: f"{day.isocalendar().year}-W{day.isocalendar().week:02}",
        "month": lambda day: f"{day:%Y-%m}",
    }
    rows = written.view("chargeback")
    for kind, name_of in names.items():
        expected = summed(
            complete_usage(written),
            lambda row, name_of=name_of: (
                name_of(day_of(row["sample_start_ms"])),
                owner_of(row["user"], row["client_id"]),
            ),
        )
        of_kind = [row for row in rows if row["period_kind"] == kind]
        assert told(of_kind, "period", "owner") == expected
        of_period: dict[Any, list[Row]] = defaultdict(list)
        for row in complete_usage(written):
            owner = owner_of(row["user"], row["client_id"])
            of_period[name_of(day_of(row["sample_start_ms"])), owner].append(row)
        for row in of_kind:
            raw = of_period[row["period"], row["owner"]]
            assert row["clients"] == len(set_of(raw, ("user", "client_id")))
            days = sorted(day_of(one["sample_start_ms"]) for one in raw)
            assert (row["first_day"], row["last_day"]) == (days[0], days[-1])
    assert {row["owner"] for row in rows} >= {"data-platform", "alice's team", "platform", "board"}
    assert len({row["period"] for row in rows if row["period_kind"] == "day"}) == 2


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
