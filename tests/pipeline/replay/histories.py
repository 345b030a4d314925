"""Small histories of usage with all that makes cutting them hard, and the replay of one in a single piece."""

from dataclasses import dataclass
from random import Random
from typing import Any

from deltalake import write_deltalake

from pipeline.replay.request import ReplayRequest, Timeline
from pipeline.replay.usage_batches import Source
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
    shares_client_ids: bool = False

    def write(self, root: str) -> ReplayRequest:
        """The table, and the order to replay a part of it with the quotas of then and with others."""
        draw = self.draw
        edits = sorted(T0_MS + draw.randrange(SECONDS * 1_000) for _ in range(draw.randrange(3)))
        live = Timeline((T0_MS, *edits), tuple(self._snapshot(version) for version in range(1, len(edits) + 2)))
        rows = self._seconds() if self.source == "usage_by_second" else self._batches(live)
        kind = UsageBySecondRow if self.source == "usage_by_second" else UsageRow
        columns = [name for name in kind.model_fields if name in rows[0]]
        kept = conform(_table(rows, columns), kind, **_FILLED[self.source])
        write_deltalake(table_uri(root, self.source), kept)
        settings = EngineSettings(num_samples=draw.choice((2, 4)), sample_window_ms=self.sample_window_ms)
        since_ms = T0_MS + draw.randrange(20_000)
        until_ms = since_ms + 20_000 + draw.randrange(60_000)
        quotas = (live, Timeline((0,), (self._snapshot(0),)))
        scope: Scope = draw.choice(("cluster", "broker"))
        return ReplayRequest(root, self.source, scope, Settings(engine=settings), since_ms, until_ms, quotas)

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
        return QuotaSnapshot.from_rows(
            [*rows, quota_row("<default>", draw.choice(("", "<default>")), **others)], version
        )

    def _seconds(self) -> list[dict[str, Any]]:
        return [
            {**row, "second_start_ms": row["last_event_ms"] // 1_000 * 1_000}
            for second in self._seconds_in_use()
            for row in self._rows(T0_MS + second * 1_000, 0)
        ]

    def _batches(self, live: Timeline) -> list[dict[str, Any]]:
        """With late usage, and now and then two at one instant."""
        rows, at_ms = [], T0_MS
        for batch_id, second in enumerate(self._seconds_in_use()):
            at_ms = max(at_ms, T0_MS + second * 1_000 + self.draw.choice((0, 0, 700, 2_300)))
            facts = {"batch_id": batch_id, "evaluated_at_ms": at_ms, "quota_version": live.at(at_ms).version}
            rows += [{**row, **facts} for row in self._rows(at_ms - 999, self.draw.choice((0, 0, 9_000)))]
        return rows

    def _seconds_in_use(self) -> list[int]:
        """All but a gap, which is shorter than the range."""
        first, length = self.draw.randrange(1, SECONDS), self.draw.choice((0, 15))
        return [second for second in range(SECONDS) if not first <= second < first + length]

    def _rows(self, second_ms: int, latest_ms: int) -> list[dict[str, Any]]:
        draw = self.draw
        brief = T0_MS + 30_000 <= second_ms < T0_MS + 34_000
        clients = [one for one in CLIENTS if draw.random() < 0.4 and (one[1] != "carol" or brief)] or CLIENTS[:1]
        return [
            usage_row(
                second_ms + draw.randrange(1_000) - (draw.randrange(latest_ms) if latest_ms else 0),
                self.sample_window_ms,
                broker_id=broker_id,
                user=user,
                client_id=client_id,
                produced_bytes=draw.choice((None, 0, 500, 9_000, 200_000)),
                fetched_bytes=draw.choice((None, 20_000)),
            )
            for broker_id, user, client_id in clients
        ]


_FILLED: dict[Source, dict[str, Any]] = {
    "usage_by_second": {"cluster": "test", "request_count": 1},
    "usage": {"cluster": "test", "query_id": "0000-query", "request_count": 1},
}


def _table(rows: list[dict[str, Any]], columns: list[str]) -> Any:
    whole = table(rows)
    for name in columns:
        if name not in whole.column_names:
            whole = whole.append_column(name, [[row[name] for row in rows]])
    return whole.select(columns)
