"""A replay holds clients as the job's own engine and purgatory do: on a hand-set clock, by the same usage."""

import tempfile
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import Phase, given
from hypothesis import settings as rules
from hypothesis import strategies as st

from pipeline.replay.request import Plan, ReplayRequest, Timeline
from pipeline.replay.run import run
from pipeline.replay.simulation import ClientStory, SimulatedBatch, Simulation, batches_of_events
from pipeline.settings.model import EngineSettings, Settings, StreamSettings
from pipeline.tables.address import table_uri
from quota.snapshot import QuotaSnapshot
from schemas.arrow import conform
from schemas.names import ClientKey
from schemas.usage import UsageEvent, UsageRow
from tests.quota.factories import quota_row

T0_MS = 1_700_000_000_000
SECONDS = 90


@dataclass(frozen=True)
class Trial:
    """Random clients under random quotas: some always over, some in bursts, some now and then.

    Attributes:
        draw: All choices.
        trigger_ms: How often a batch is decided.
        is_steady: Whether every batch has an event in its last millisecond, so that it is evaluated at its trigger.
    """

    draw: Random
    trigger_ms: int
    is_steady: bool

    def settings(self) -> Settings:
        draw = self.draw
        engine = EngineSettings(
            num_samples=draw.choice((3, 11)),
            producer_byte_rate_cap=draw.choice(("window", "none", "sample_window", 700)),
        )
        return Settings(engine=engine, stream=StreamSettings(trigger_ms=self.trigger_ms))

    def events(self) -> list[UsageEvent]:
        draw = self.draw
        events = []
        for name in ("alice", "bob", "carol"):
            kind, rate = draw.choice(("steady", "bursts", "rare")), draw.choice((300, 900, 1_500, 5_000, 30_000))
            for second in range(SECONDS):
                uses = {"steady": True, "bursts": second % 40 < 6, "rare": draw.random() < 0.1}[kind]
                for _ in range(draw.randrange(1, 4) if uses else 0):
                    at_ms = T0_MS + second * 1_000 + draw.randrange(1_000)
                    amount = draw.randrange(rate)
                    fetched = draw.choice((None, amount))
                    events.append(_event(at_ms, name, draw.choice("ab"), produced_bytes=amount, fetched_bytes=fetched))
        if self.is_steady:
            triggers_ms = range(T0_MS, T0_MS + SECONDS * 1_000, self.trigger_ms)
            events += [_event(at_ms + self.trigger_ms - 1, "clock", "", produced_bytes=0) for at_ms in triggers_ms]
        return events

    def quotas(self) -> QuotaSnapshot:
        draw = self.draw
        rows = [
            quota_row("<default>", "", producer_byte_rate=1_000.0, consumer_byte_rate=draw.choice((400.0, 9_000.0)))
        ]
        if draw.random() < 0.5:
            rows.append(quota_row("alice", "a", producer_byte_rate=draw.choice((200.0, 2_000.0))))
        return QuotaSnapshot.from_rows(rows, 1)


def _event(at_ms: int, user: str, client_id: str, **amounts: Any) -> UsageEvent:
    return UsageEvent(event_time_ms=at_ms, user=user, client_id=client_id, **amounts)


def simulated(settings: Settings, batches: list[SimulatedBatch], quotas: QuotaSnapshot) -> dict[ClientKey, ClientStory]:
    simulation = Simulation(settings, settings.stream.trigger_ms, quotas, "cluster", lambda now_ms, record: None)
    simulation.run(batches)
    return simulation.clients


def replayed(settings: Settings, batches: list[SimulatedBatch], quotas: QuotaSnapshot) -> dict[ClientKey, int]:
    """Time each client is held in a replay of the same batches."""
    with tempfile.TemporaryDirectory() as root:
        tables = [
            conform(
                batch.usage,
                UsageRow,
                cluster="test",
                query_id="0000-query",
                batch_id=batch_id,
                evaluated_at_ms=batch.newest_event_ms,
                quota_version=1,
                request_count=1,
            )
            for batch_id, batch in enumerate(batches)
        ]
        write_deltalake(table_uri(root, "usage"), pa.concat_tables(tables))
        timeline = Timeline((0,), (quotas,))
        request = ReplayRequest(root, "usage", "cluster", settings, T0_MS, T0_MS + 900_000, (timeline,))
        (result,) = run(Plan.of(request), lambda done, whole: None)
    return {client: outcome.throttle_ms for client, outcome in result.outcomes.items()}


@pytest.mark.parametrize("trigger_ms", [500, pytest.param(1_000, marks=pytest.mark.long)])
@rules(max_examples=3, phases=(Phase.generate,))
@given(seed=st.integers(0, 10**9))
def test_batches_at_their_triggers_hold_clients_as_simulated_to_the_millisecond(trigger_ms: int, seed: int) -> None:
    trial = Trial(Random(seed), trigger_ms, is_steady=True)
    settings, events, quotas = trial.settings(), trial.events(), trial.quotas()
    batches = list(batches_of_events(events, trigger_ms, 1_000))
    stories = simulated(settings, batches, quotas).items()
    wanted = {client: story.throttle_ms for client, story in stories if story.throttle_ms}
    found = replayed(settings, batches, quotas)
    assert {client: held_ms for client, held_ms in found.items() if held_ms} == wanted


def test_batches_before_their_triggers_hold_clients_as_simulated_within_a_percent() -> None:
    """The job's clock is set anew by each batch, to its newest event; between the two lies up to a trigger."""
    found_ms = wanted_ms = held = 0
    for seed in range(3):
        trial = Trial(Random(seed), 500, is_steady=False)
        settings, events, quotas = trial.settings(), trial.events(), trial.quotas()
        batches = list(batches_of_events(events, 500, 1_000))
        stories, found = simulated(settings, batches, quotas), replayed(settings, batches, quotas)
        found_ms += sum(found.values())
        wanted_ms += sum(story.throttle_ms for story in stories.values())
        held += sum(story.throttle_ms > 0 for story in stories.values())
    assert held > 9
    assert found_ms == pytest.approx(wanted_ms, rel=0.01)
