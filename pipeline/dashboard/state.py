"""What the page shows at one moment: one immutable value that the reader makes and all requests share."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.dashboard.health import Health
from pipeline.dashboard.live_rates import SensorRate
from pipeline.dashboard.now_view import (
    MOST_RECENT,
    MOST_TALKERS,
    MOST_THROTTLED,
    event_row,
    talker_row,
    throttled_row,
    totals,
)
from pipeline.dashboard.running_throttles import RunningThrottle


@dataclass(frozen=True, slots=True)
class Source:
    """One Delta table as the dashboard sees it.

    Attributes:
        name: Of the table.
        version: The newest one; None if it can not be read.
        committed_at_ms: When that was committed; None if not known.
        failure: Why it can not be read; None if it can.
    """

    name: str
    version: int | None
    committed_at_ms: int | None
    failure: str | None


@dataclass(frozen=True, slots=True)
class State:
    """All of it.

    Attributes:
        now_ms: Wall clock of the moment.
        seq: Counts up with every value that differs in more than its time.
        health: Whether the pipeline works.
        cluster: Name of the Kafka cluster; None before the first batch.
        quotas: Version in force, the newest version, scope and mode.
        batch: The newest row of `batches`; None before the first.
        running: Who is held.
        levels: See `now_view.Levels`; of the clients of `running` and `recent`.
        sensors: All rates, the nearest to their bound first.
        rates_at_ms: The instant of the rates, in event time.
        seconds: See `LiveRates.totals`.
        active_clients: How many clients sent anything lately.
        recent: The newest rows of `throttle_events`, newest first.
        sources: All tables.
    """

    now_ms: int
    seq: int
    health: Health
    cluster: str | None = None
    quotas: Mapping[str, Any] = field(default_factory=dict)
    batch: Mapping[str, Any] | None = None
    running: Sequence[RunningThrottle] = ()
    levels: Mapping[tuple[str, str, str], Mapping[str, Any]] = field(default_factory=dict)
    sensors: Sequence[SensorRate] = ()
    rates_at_ms: int = 0
    seconds: Sequence[tuple[int, int, int, int]] = ()
    active_clients: int = 0
    recent: Sequence[Mapping[str, Any]] = ()
    sources: Sequence[Source] = ()

    def head(self) -> dict[str, Any]:
        """What every view needs: the time, the health, the versions."""
        return {
            "now_ms": self.now_ms,
            "seq": self.seq,
            "health": asdict(self.health),
            "cluster": self.cluster,
            "quotas": dict(self.quotas),
            "versions": {source.name: source.version for source in self.sources},
            "batch_id": None if self.batch is None else self.batch["batch_id"],
        }

    def summary(self) -> dict[str, Any]:
        """The view Now."""
        held = {(one.row["user"], one.row["client_id"]): one for one in self.running}
        return {
            **self.head(),
            "rates_at_ms": self.rates_at_ms,
            "totals": totals(self.running, self.seconds, self.sensors, self.active_clients),
            "throttled": [throttled_row(one, self.levels) for one in self.running[:MOST_THROTTLED]],
            "talkers": [talker_row(one, held) for one in self.sensors[:MOST_TALKERS]],
            "recent": [event_row(row, self.levels) for row in self.recent[:MOST_RECENT]],
            "seconds": [list(second) for second in self.seconds[-181:-1]],
        }
