from typing import Any

from pipeline.replay.simulation import Simulation, batches_of_events
from pipeline.settings.model import Settings
from pipeline.throttle.shapes import Written
from quota.snapshot import QuotaSnapshot
from schemas.names import ClientKey
from schemas.usage import UsageEvent
from tests.quota.factories import quota_row

T0_MS = 1_700_000_000_000
ALICE = ClientKey("", "alice", "etl")


def event(at_ms: int, produced_bytes: int) -> UsageEvent:
    return UsageEvent(event_time_ms=T0_MS + at_ms, user="alice", client_id="etl", produced_bytes=produced_bytes)


def simulate(events: list[UsageEvent], **quota: Any) -> tuple[Simulation, list[tuple[int, str, str]]]:
    told: list[tuple[int, str, str]] = []

    def tell(now_ms: int, record: Written) -> None:
        told.append((now_ms - T0_MS, record.publication.action, record.publication.cause))

    quotas = QuotaSnapshot.from_rows([quota_row("alice", **{"producer_byte_rate": 1_000.0, **quota})], 1)
    simulation = Simulation(Settings(), 500, quotas, "cluster", tell)
    simulation.run(batches_of_events(events, 500, 1_000))
    return simulation, told


def test_a_throttle_is_begun_by_a_batch_and_released_when_nothing_is_owed() -> None:
    # The sample of 15 000 bytes leaves the window of the rate 11 s after its own began; no look before finds less owed.
    simulation, told = simulate([event(100, 15_000)])
    assert told[0] == (500, "throttle", "violation")
    assert told[-1][1:] == ("release", "expired")
    assert 11_000 <= told[-1][0] <= 16_000
    story = simulation.clients[ALICE]
    assert (story.violations, story.renewals, story.releases) == (1, len(told) - 2, 1)
    assert (story.throttle_ms, story.held_since_ms) == (told[-1][0] - 500, None)


def test_a_debt_beyond_the_cap_is_renewed_until_it_is_paid() -> None:
    simulation, told = simulate([event(0, 60_000)])
    story = simulation.clients[ALICE]
    assert told[0] == (500, "throttle", "violation")
    assert told[-1][1:] == ("release", "expired")
    assert story.renewals == len(told) - 2 > 0
    # 60 000 bytes at 1 000 a second, less the burst of 11 000 in the bucket.
    assert 48_000 <= story.throttle_ms <= 51_000


def test_quiet_hours_between_events_take_no_time() -> None:
    _, told = simulate([event(0, 15_000), event(86_400_000, 15_000)])
    assert [at_ms for at_ms, _, cause in told if cause == "violation"] == [500, 86_400_500]
    assert [action for _, action, _ in told].count("release") == 2


def test_a_shadow_quota_tells_nothing_and_is_counted() -> None:
    simulation, told = simulate([event(0, 15_000), event(600, 0), event(30_000, 0)], mode="shadow")
    assert told == []
    assert simulation.clients[ALICE].shadowed == 2


def test_below_the_bound_nothing_happens() -> None:
    simulation, told = simulate([event(0, 10_000)])
    assert (told, simulation.clients) == ([], {})
