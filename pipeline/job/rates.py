"""Replaces the table `rates`: how near every sensor is to its bound, as the engine that decides sees it."""

import logging
from collections.abc import Callable
from typing import Final

import pyarrow as pa
from deltalake.exceptions import DeltaError

from pipeline.clock import Clock
from pipeline.errors import PipelineError, first_line
from pipeline.tables.address import is_local
from pipeline.tables.port import TableWriter
from pipeline.tables.upkeep import clean, log_failures
from pipeline.throttle.decider import Decider
from quota.current_rates import COLUMNS, TOTALS, CurrentRates
from quota.replay import Evaluation
from schemas.arrow import conform
from schemas.rows import RatesRow

log = logging.getLogger(__name__)

_EVERY_SECONDS: Final = 1.0
_IN_A_STORE_SECONDS: Final = 10.0  # each replacement is some requests there
_RESTS: Final = 19
"""The rest after a step is so much longer than the step: it takes a twentieth of the time of one core at most."""
_CLEANED_EVERY_MS: Final = 60_000


class RatesTable:
    """Replaces the table again and again; for one thread. Nothing waits for it, and it decides nothing.

    A replacement that fails is logged and counted; the next one has newer rates. A driver that was fenced replaces
    nothing. Replaced files go two minutes later, by the same thread: no other commits race with the replacements.

    * `held`: Gives `ThrottlePurgatory.held_until`.
    """

    def __init__(
        self, writer: TableWriter, uri: str, cluster: str, decider: Decider, held: Callable[[], pa.Table], clock: Clock
    ) -> None:
        self._writer = writer
        self._uri = uri
        self._cluster = cluster
        self._decider = decider
        self._held = held
        self._clock = clock
        self._written: tuple[Evaluation, pa.Table] | None = None
        self._cleaned_at_ms = clock.now().steady_ms
        self.rows = COLUMNS.empty_table()
        """The newest rows, of `quota.current_rates.COLUMNS`. For any thread."""
        self.failures = 0
        """How many replacements have failed."""

    def step(self) -> float:
        """Replace the rows if anything is new; returns for how many seconds to rest."""
        began = self._clock.now()
        held = self._held()
        seen, found = self._decider.current_rates(held)
        if seen.batch_id >= 0 and (self._written is None or self._written != (seen, held)):
            self.rows = found.rows
            self._replace(seen, found)
            self._written = seen, held
        if began.steady_ms - self._cleaned_at_ms >= _CLEANED_EVERY_MS:
            self._cleaned_at_ms = began.steady_ms
            with log_failures(log, "upkeep of rates"):
                clean(self._uri)
        took_seconds = (self._clock.now().steady_ms - began.steady_ms) / 1000
        return max(_EVERY_SECONDS if is_local(self._uri) else _IN_A_STORE_SECONDS, _RESTS * took_seconds)

    def _replace(self, seen: Evaluation, found: CurrentRates) -> None:
        facts: dict[str, str | int] = {
            "query_id": seen.query_id,
            "batch_id": seen.batch_id,
            "time_epoch": seen.time_epoch,
        }
        facts |= {"as_of_ms": seen.evaluated_at_ms}
        totals = {name: getattr(found, name) for name in TOTALS}
        try:
            rows = conform(found.rows, RatesRow, cluster=self._cluster, **facts)
            self._writer.replace(rows, {name: str(value) for name, value in (facts | totals).items()})
        except (PipelineError, DeltaError, OSError) as exc:
            self.failures += 1
            log.warning("rates were not replaced, the next ones will be newer: %s", first_line(exc))
