"""What is to be replayed: a range of kept usage, and the quotas of each replay."""

from dataclasses import dataclass

from pipeline.replay.pieces import Source
from pipeline.replay.stretch import Scope
from pipeline.replay.timeline import Timeline
from pipeline.settings.model import EngineSettings


@dataclass(frozen=True, slots=True)
class ReplayOrder:
    """What to replay. Plain values: it goes to other processes and machines.

    Attributes:
        root: Of the tables.
        source: Which table.
        scope: The engine's.
        settings: The engine's.
        since_ms: Begin of the range, inclusive.
        until_ms: End of the range, exclusive.
        quotas: Of each replay: one snapshot throughout, or those that were in force.
        version: Of the table with the usage; None = the newest.
    """

    root: str
    source: Source
    scope: Scope
    settings: EngineSettings
    since_ms: int
    until_ms: int
    quotas: tuple[Timeline, ...]
    version: int | None = None

    @property
    def begin_ms(self) -> int:
        """Where reading begins: the warm-up before the range."""
        return self.since_ms - self.settings.rate_span_ms
