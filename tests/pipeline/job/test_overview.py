"""Which lines `kquota top` has: a sensor with a rate, or with a throttled client, once; and what is stalled."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.job.overview import Overview, lines_of, overview_of
from pipeline.settings.model import Settings, StreamSettings, TablesSettings
from pipeline.tables.quotas.edit import QuotaChange
from quota.current_rates import SensorRate
from quota.entity import QUOTA_TYPES
from tests.pipeline.demo.played import new_job, throttle_one
from tests.pipeline.replay.kept import KeptJob
from tests.quota.factories import quota_row, usage_row

RATE, _, REQUEST = QUOTA_TYPES
END_MS = 1_700_000_060_000


def rate(quota: tuple[str, str], user: str, client_id: str, observed: float, bound: float = 100.0) -> SensorRate:
    return SensorRate(
        quota_type=RATE,
        user=user or "some",
        client_id=client_id or "some",
        sensor_user=user,
        sensor_client_id=client_id,
        broker_id="",
        clients=1,
        observed=observed,
        bound=bound,
        level=1,
        mode="enforce",
        entity=quota,
    )


def throttle(user: str, client_id: str, sensor: tuple[str, str], **columns: Any) -> dict[str, Any]:
    about = {"broker_id": "", "user": user, "client_id": client_id, "sensor_user": sensor[0]}
    rest = {"sensor_client_id": sensor[1], "quota_type": RATE, "publish_seq": 0, "throttled_until_ms": END_MS}
    return {**about, **rest, "bound": 100.0, "decision_id": f"of-{client_id}", **columns}


def seen(lines: Any) -> list[tuple[str, str, float, int]]:
    return [(line.user, line.client_id, line.used, line.throttled_clients) for line in lines]


def test_throttled_sensors_come_first_and_a_group_begins_nearest_to_its_bound() -> None:
    quotas = [quota_row("<default>", "<default>", producer_byte_rate=100.0, owner="data")]
    default = ("<default>", "<default>")
    rates = [rate(default, name, "x", used) for name, used in (("a", 10.0), ("b", 250.0), ("c", 90.0), ("d", 99.0))]
    held = [throttle("a", "x", ("a", "x")), throttle("c", "x", ("c", "x"))]
    lines = lines_of(rates, held, quotas)
    assert seen(lines) == [("c", "x", 0.9, 1), ("a", "x", 0.1, 1), ("b", "x", 2.5, 0), ("d", "x", 0.99, 0)]
    assert {line.owner for line in lines} == {"data"}


def test_clients_that_share_a_sensor_share_its_line_with_the_last_end() -> None:
    quotas = [quota_row("alice", producer_byte_rate=100.0)]
    later = throttle("alice", "web", ("alice", ""), throttled_until_ms=END_MS + 1)
    held = [throttle("alice", "etl", ("alice", "")), later]
    (line,) = lines_of([rate(("alice", ""), "alice", "", 50.0)], held, quotas)
    assert (line.throttled_clients, line.throttled_until_ms, line.decision_id) == (2, END_MS + 1, "of-web")


@pytest.mark.parametrize(
    ("row", "bound", "owner"),
    [
        (quota_row("alice", "etl", producer_byte_rate=7.0, owner="data"), 7.0, "data"),
        (quota_row("<default>", "etl", producer_byte_rate=8.0, owner="data"), 8.0, "data"),
        (quota_row("alice", "etl", producer_byte_rate=7.0, owner="data", mode="shadow"), None, ""),
        (quota_row("alice", "etl", request_percentage=7.0, owner="data"), None, ""),
        (quota_row("bob", "etl", producer_byte_rate=7.0, owner="data"), None, ""),
    ],
)
def test_a_client_that_is_held_and_silent_has_a_line_with_the_bound_it_is_under_now(
    row: dict[str, Any], bound: float | None, owner: str
) -> None:
    (line,) = lines_of([], [throttle("alice", "etl", ("alice", "etl"))], [row])
    assert (line.user, line.client_id, line.observed, line.used) == ("alice", "etl", 0.0, 0.0)
    assert (line.bound, line.owner, line.throttled_clients) == (bound, owner, 1)


def test_a_throttle_of_another_quota_type_has_a_line_of_its_own() -> None:
    quotas = [quota_row("alice", producer_byte_rate=100.0, request_percentage=5.0)]
    held = [throttle("alice", "etl", ("alice", ""), quota_type=REQUEST)]
    lines = lines_of([rate(("alice", ""), "alice", "", 500.0)], held, quotas)
    assert [(line.quota_type, line.throttled_clients) for line in lines] == [(REQUEST, 1), (RATE, 0)]


def test_a_shadow_quota_throttles_no_client_though_an_enforced_one_has_its_sensor() -> None:
    enforced = quota_row("<default>", producer_byte_rate=200.0)
    quotas = [enforced, quota_row("alice", producer_byte_rate=100.0, mode="shadow")]
    rates = [rate(("alice", ""), "alice", "", 300.0), rate(("<default>", ""), "alice", "", 300.0, 200.0)]
    lines = lines_of(rates, [throttle("alice", "etl", ("alice", ""))], quotas)
    assert [(line.mode, line.throttled_clients) for line in lines] == [("enforce", 1), ("shadow", 0)]


def test_the_rates_of_a_job_are_those_of_its_newest_batch_and_totals_have_all_usage(tmp_path: Path) -> None:
    job = KeptJob(str(tmp_path), QuotaChange("alice", "", {"producer_byte_rate": 10_000.0, "owner": "data"}))
    for _ in range(20):
        job.clock.advance(1_000)
        used = {"alice": 5_000, "nobody": 1_000}
        job.batch([usage_row(job.clock.wall_ms, user=user, produced_bytes=size) for user, size in used.items()])
    job.flush()
    found = overview_of(Settings(tables=TablesSettings(root=job.root)), job.clock.wall_ms)
    ((line),) = found.lines
    assert (line.user, line.observed, line.used, line.owner) == ("alice", 5_500.0, 0.55, "data")
    assert (found.totals.clients, found.totals.produced_bytes_per_second) == (2, 6_600.0)
    assert found.rates_at_ms == job.clock.wall_ms


def test_a_throttled_client_is_on_the_line_of_its_sensor(tmp_path: Path) -> None:
    job = new_job(tmp_path)
    throttle_one(job)
    found = overview_of(job.settings, job.clock.wall_ms)
    (line,) = found.lines
    assert (line.throttled_clients, found.totals.throttled_clients, found.status.held_clients) == (1, 1, 1)
    assert line.used > 1
    assert line.throttled_until_ms is not None
    assert line.throttled_until_ms > job.clock.wall_ms


def overview(age_ms: int | None, lag_ms: int = 0) -> Overview:
    from tests.pipeline.cli.top_states import state  # noqa: PLC0415

    return replace(state(), status=replace(state().status, last_batch_age_ms=age_ms, lag_ms=lag_ms))


@pytest.mark.parametrize(
    ("age_ms", "later_ms", "stalled"),
    [
        (None, 0, True),
        (0, 0, False),
        (10_000, 0, False),
        (10_001, 0, True),
        (4_000, 6_000, False),
        (4_000, 6_001, True),
    ],
)
def test_a_job_without_a_batch_for_longer_than_a_decision_may_be_old_is_stalled(
    age_ms: int | None, later_ms: int, stalled: bool
) -> None:
    found = overview(age_ms)
    assert found.is_stalled(found.read_at_ms + later_ms) is stalled


@pytest.mark.parametrize(("lag_ms", "behind"), [(10_000, False), (10_001, True)])
def test_a_batch_of_usage_too_old_to_throttle_by_is_behind(lag_ms: int, behind: bool) -> None:
    assert overview(0, lag_ms).is_behind is behind


def test_a_slow_trigger_is_no_stall(tmp_path: Path) -> None:
    job = new_job(tmp_path)
    slow = job.settings.model_copy(update={"stream": StreamSettings(trigger_ms=60_000)})
    assert overview_of(slow, 0).stalled_after_ms == 180_000
