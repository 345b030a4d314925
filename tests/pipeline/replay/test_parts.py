"""A range that is read in slices gives what it gives in one piece: small histories of usage that are hard to cut."""

import tempfile
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from deltalake import write_deltalake
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline.replay.request import ReplayRequest, Timeline, slice_length_ms
from pipeline.replay.usage_batches import Source
from pipeline.replay.what_if import run
from pipeline.settings.model import EngineSettings, Settings
from pipeline.tables.port import table_uri
from quota.engine import Scope
from quota.snapshot import QuotaSnapshot
from schemas.arrow import conform
from schemas.usage import UsageBySecondRow, UsageRow
from tests.quota.factories import quota_row, table, usage_row

T0_MS = 1_700_000_000_000
SECONDS = 80
CLIENTS = [("1", "alice", "etl"), ("2", "alice", "etl"), ("1", "alice", "app"), ("1", "bob", "etl"), ("2", "carol", "")]
BOUNDS = (100.0, 3_000.0, 40_000.0)


@dataclass(frozen=True)
class History:
    """What somebody used, under quotas that were edited on the way.

    Attributes:
        draw: All choices.
        source: Which table it is in.
        sample_window_ms: The engine's.
        shares_client_ids: One quota bounds a client-id of several users together.
    """

    draw: Random
    source: Source
    sample_window_ms: int
    shares_client_ids: bool

    def write(self, root: str) -> ReplayRequest:
        """The table, and the order to replay a part of it with the quotas of then and with others."""
        draw = self.draw
        edits = sorted(T0_MS + draw.randrange(SECONDS * 1_000) for _ in range(draw.randrange(3)))
        live = Timeline((T0_MS, *edits), tuple(self._snapshot(version) for version in range(1, len(edits) + 2)))
        self._keep(root, self._batches(live))
        settings = EngineSettings(num_samples=draw.choice((2, 4)), sample_window_ms=self.sample_window_ms)
        since_ms = T0_MS + draw.randrange(20_000)
        until_ms = since_ms + 20_000 + draw.randrange(60_000)
        quotas = (live, Timeline((0,), (self._snapshot(0),)))
        scope: Scope = draw.choice(("cluster", "broker"))
        return ReplayRequest(root, self.source, scope, Settings(engine=settings), since_ms, until_ms, quotas)

    def _keep(self, root: str, rows: list[dict[str, Any]]) -> None:
        used = table(rows)
        about: dict[str, Any] = {"cluster": "test", "request_count": 1}
        if self.source == "usage":
            about["query_id"] = "0000-query"
            for name in ("batch_id", "evaluated_at_ms", "quota_version"):
                used = used.append_column(name, [[row[name] for row in rows]])
            kept = conform(used, UsageRow, **about)
        else:
            seconds = [row["last_event_ms"] // 1_000 * 1_000 for row in rows]
            kept = conform(used.append_column("second_start_ms", [seconds]), UsageBySecondRow, **about)
        write_deltalake(table_uri(root, self.source), kept)

    def _snapshot(self, version: int) -> QuotaSnapshot:
        """A few bounds, small ones among them: their throttles last longer than the history."""
        draw = self.draw
        rows = [
            quota_row(user, client_id, producer_byte_rate=draw.choice(BOUNDS), mode=draw.choice(("enforce", "shadow")))
            for user, client_id in (("alice", ""), ("alice", "app"), ("bob", "etl"))
            if draw.random() < 0.7
        ]
        if self.shares_client_ids:
            rows.append(quota_row("", "etl", producer_byte_rate=draw.choice(BOUNDS)))
        others = {"producer_byte_rate": draw.choice(BOUNDS), "consumer_byte_rate": 5_000.0}
        rows.append(quota_row("<default>", draw.choice(("", "<default>")), **others))
        return QuotaSnapshot.from_rows(rows, version)

    def _batches(self, live: Timeline) -> list[dict[str, Any]]:
        """All seconds but a gap, with late usage, and now and then two at one instant."""
        draw, rows, at_ms = self.draw, [], T0_MS
        gap, length = draw.randrange(1, SECONDS), draw.choice((0, 15))
        for batch_id, second in enumerate(one for one in range(SECONDS) if not gap <= one < gap + length):
            at_ms = max(at_ms, T0_MS + second * 1_000 + draw.choice((0, 0, 700, 2_300)))
            facts = {"batch_id": batch_id, "evaluated_at_ms": at_ms, "quota_version": live.at(at_ms).version}
            latest_ms = draw.choice((1, 1, 9_000)) if self.source == "usage" else 1
            rows += [{**row, **facts} for row in self._rows(at_ms - 999, latest_ms)]
        return rows

    def _rows(self, begin_ms: int, latest_ms: int) -> list[dict[str, Any]]:
        """What some clients used in a second; carol is there for a moment only."""
        draw = self.draw
        brief = T0_MS + 30_000 <= begin_ms < T0_MS + 34_000
        clients = [one for one in CLIENTS if draw.random() < 0.4 and (one[1] != "carol" or brief)] or CLIENTS[:1]
        return [
            usage_row(
                begin_ms + draw.randrange(1_000) - draw.randrange(latest_ms),
                self.sample_window_ms,
                broker_id=broker_id,
                user=user,
                client_id=client_id,
                produced_bytes=draw.choice((None, 0, 500, 9_000, 200_000)),
                fetched_bytes=draw.choice((None, 20_000)),
            )
            for broker_id, user, client_id in clients
        ]


def facts(request: ReplayRequest, slice_ms: int) -> list[object]:
    """All there is of its replays, to be compared."""
    results = run(request, lambda done, whole: None, slice_ms)
    return [(one.outcomes, one.evaluations, one.rows) for one in results]


@pytest.mark.parametrize("source", ["usage_by_second", "usage"])
@settings(max_examples=5, phases=(Phase.explicit, Phase.reuse, Phase.generate))  # seeds shrink to nothing smaller
@given(
    seed=st.integers(0, 10**9),
    slice_ms=st.integers(2_500, 90_000),
    window_ms=st.sampled_from([1_000, 3_000]),
    shares=st.booleans(),
)
def test_a_range_in_any_slices_comes_to_what_one_slice_comes_to(
    source: Source, seed: int, slice_ms: int, window_ms: int, shares: bool
) -> None:
    with tempfile.TemporaryDirectory() as root:
        request = History(Random(seed), source, window_ms, shares).write(root)
        assert facts(request, slice_ms) == facts(request, 10**9)


@pytest.mark.parametrize(
    ("hours", "clients", "longest_ms"),
    [(24, 1_000, 1_200_000), (24, 10, 3_600_000), (1, 1_000, 180_000), (1, 100_000, 60_000)],
)
def test_slices_are_as_long_as_memory_and_a_progress_bar_allow(hours: int, clients: int, longest_ms: int) -> None:
    assert slice_length_ms(hours * 3_600_000, hours * 3_600 * clients) == pytest.approx(longest_ms, rel=0.01)
