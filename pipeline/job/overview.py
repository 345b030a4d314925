"""Who is near a bound, who is throttled and until when, and how old that knowledge is: what `kquota top` shows."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.job.status import JobStatus, Reading, stalled_after_ms, status_from
from pipeline.process import Activity, activity_of
from pipeline.settings.model import Settings
from pipeline.stream.batch_facts import BatchFacts
from pipeline.tables.address import table_uri
from pipeline.tables.port import of_newest_epoch
from pipeline.tables.queries import newest_batch_under
from pipeline.tables.reading import DeltaRsReader, arrow_scalar
from pipeline.throttle.assembly import new_engine
from quota.current_rates import SensorRate, mean_span_seconds, sensor_rates
from quota.engine import QuotaEngine, Scope
from quota.entity import Level, entity_at
from quota.rates import is_on_windows, on_windows
from quota.replay import USAGE_COLUMNS
from quota.snapshot import QuotaSnapshot

Question = tuple[QuotaSnapshot, pa.Table, int, Callable[[], QuotaEngine]]
"""The arguments of the functions in `quota.current_rates`."""


@dataclass(frozen=True, slots=True)
class NewestUsage:
    """What was used in the windows of the rates, up to the newest stored usage: a job that starts now begins with it.

    Attributes:
        facts: Of the newest batch that is recorded. A job that was killed may have stored usage of a later one.
        at_ms: The instant of the rates: when the newest usage was evaluated.
    """

    facts: BatchFacts
    usage: pa.Table
    at_ms: int

    def under(self, snapshot: QuotaSnapshot, scope: Scope) -> Question:
        """What `quota.current_rates` is to compute: the rates under these quotas at the instant of the batch."""
        engine = self.facts.settings
        return snapshot, self.usage, self.at_ms, lambda: new_engine(engine, scope)


def newest_usage(root: str) -> NewestUsage | None:
    """Read it from the tables under a root; None if no batch is stored."""
    newest = newest_batch_under(root)
    return None if newest is None else usage_until(root, newest)


def usage_until(root: str, batch: Mapping[str, Any]) -> NewestUsage:
    """Read the newest usage, after a row of `batches` of the newest time epoch."""
    facts, table = BatchFacts.from_row(batch), DeltaRsReader(table_uri(root, "usage"))
    engine, at_ms, time_epoch = facts.settings, facts.evaluation.evaluated_at_ms, facts.evaluation.time_epoch
    newest = table.newest_instant()
    if newest is not None:
        time_epoch, at_ms = max((time_epoch, at_ms), (newest.time_epoch, newest.evaluated_at_ms))
    span = [("evaluated_at_ms", ">=", at_ms - engine.rate_span_ms), ("evaluated_at_ms", "<=", at_ms)]
    usage = table.read(USAGE_COLUMNS, [*of_newest_epoch(time_epoch), *span])
    if not is_on_windows(usage, engine.sample_window_ms):  # the job had other settings a moment ago
        usage = on_windows(usage, engine.sample_window_ms)
    return NewestUsage(facts, usage, at_ms)


_PERCENT_PER_NS: Final = 1e-7  # of one thread, when a second has that many nanoseconds


@dataclass(frozen=True, slots=True)
class Line:
    """One sensor under one bound.

    Attributes:
        user: The sensor's user; "" if all users share it; so is `client_id`.
        observed: O at the newest batch; 0 if nothing was used in its windows.
        bound: T; None if no bound is left.
        used: O / T; 0 without a bound.
        owner: Of the quota; "" if the row names none.
        throttled_until_ms: When the last of these throttles ends, by wall clock; None = no client is throttled.
    """

    user: str
    client_id: str
    broker_id: str
    quota_type: str
    observed: float
    bound: float | None
    used: float
    mode: str
    owner: str
    throttled_clients: int = 0
    throttled_until_ms: int | None = None
    decision_id: str | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """Of the whole cluster, over the windows of the rates; of all clients, with and without quotas."""

    clients: int = 0
    produced_bytes_per_second: float = 0.0
    fetched_bytes_per_second: float = 0.0
    request_percentage: float = 0.0
    throttled_clients: int = 0


@dataclass(frozen=True, slots=True)
class Overview:
    """The state at one instant.

    Attributes:
        rates_at_ms: The instant of the rates, in event time; None without a batch.
        stalled_after_ms: A newest batch older than this is a sign of a job that hangs, or that gets no usage; one that
            was this late when it was read publishes no throttles.
        lines: Throttled sensors first, each group from the nearest to its bound on.
    """

    read_at_ms: int
    rates_at_ms: int | None
    stalled_after_ms: int
    status: JobStatus
    totals: Totals
    lines: Sequence[Line] = field(default=())

    def batch_age_ms(self, now_ms: int) -> int | None:
        """How long ago the newest known batch was read; None without a batch."""
        age_ms = self.status.last_batch_age_ms
        return None if age_ms is None else age_ms + max(now_ms - self.read_at_ms, 0)

    def is_stalled(self, now_ms: int) -> bool:
        """Whether what is shown may no longer be so: there is no new batch."""
        age_ms = self.batch_age_ms(now_ms)
        return age_ms is None or age_ms > self.stalled_after_ms

    def activity(self, now_ms: int) -> Activity:
        """What the job does; see `activity_of`."""
        waited_ms = self.status.last_wait_age_ms
        waited_now_ms = None if waited_ms is None else waited_ms + max(now_ms - self.read_at_ms, 0)
        is_up = self.status.process is not None
        return activity_of(is_up, self.batch_age_ms(now_ms), waited_now_ms, self.stalled_after_ms)

    @property
    def is_behind(self) -> bool:
        """Whether the newest batch was so late that it published no throttle."""
        return self.status.lag_ms is not None and self.status.lag_ms > self.stalled_after_ms


def overview_of(settings: Settings, now_ms: int) -> Overview:
    """The state at `now_ms`, by wall clock; InvalidQuotas if no version of the quotas is valid."""
    read = Reading.of(settings, now_ms)
    used = None if read.batch is None else usage_until(settings.tables.root, read.batch)
    scope = settings.scope or ("broker" if read.quotas.scope == "broker" else "cluster")
    rates = [] if used is None else sensor_rates(*used.under(read.in_force, scope))
    totals = Totals() if used is None else _totals(used)
    return Overview(
        read_at_ms=now_ms,
        rates_at_ms=None if used is None else used.at_ms,
        stalled_after_ms=stalled_after_ms(settings),
        status=status_from(settings, read),
        totals=replace(totals, throttled_clients=len(read.throttles)),
        lines=lines_of(rates, read.throttles, read.quotas.rows),
    )


def lines_of(
    rates: Sequence[SensorRate], throttles: Sequence[Mapping[str, Any]], quotas: Sequence[Mapping[str, Any]]
) -> list[Line]:
    """A line for each sensor that has a rate, or a throttled client, by the last row of `throttle_events` of each."""
    by_entity = {(row["user"], row["client_id"]): row for row in quotas}
    held = defaultdict(list)
    for throttle in throttles:
        sensor = throttle["broker_id"], throttle["sensor_user"], throttle["sensor_client_id"]
        held[throttle["quota_type"], sensor].append(throttle)
    lines = []
    for rate in rates:
        row = by_entity.get(rate.entity, {})
        is_shadow = row.get("mode") == "shadow"
        sensor = rate.broker_id, rate.sensor_user, rate.sensor_client_id
        line = _line(rate.quota_type, sensor, row, rate.bound, rate.observed)
        lines.append(_with_throttles(line, [] if is_shadow else held.pop((rate.quota_type, sensor), [])))
    for (quota_type, sensor), throttles_of_sensor in held.items():
        # Held, and silent for as long as the windows reach back.
        newest = max(throttles_of_sensor, key=lambda throttle: int(throttle["publish_seq"]))
        row = _row_for(by_entity, newest)
        line = _line(quota_type, sensor, row, row.get(quota_type), 0.0)
        lines.append(_with_throttles(line, throttles_of_sensor))
    return sorted(lines, key=lambda line: (not line.throttled_clients, -line.used, line.user, line.client_id))


def _line(
    quota_type: str, sensor: tuple[str, str, str], row: Mapping[str, Any], bound: float | None, observed: float
) -> Line:
    broker_id, user, client_id = sensor
    return Line(
        user=user,
        client_id=client_id,
        broker_id=broker_id,
        quota_type=quota_type,
        observed=observed,
        bound=bound,
        used=observed / bound if bound else 0.0,
        mode=row.get("mode", "enforce"),
        owner=row.get("owner") or "",
    )


def _with_throttles(line: Line, throttles: Sequence[Mapping[str, Any]]) -> Line:
    if not throttles:
        return line
    last = max(throttles, key=lambda throttle: int(throttle["throttled_until_ms"]))
    return replace(
        line,
        throttled_clients=len(throttles),
        throttled_until_ms=last["throttled_until_ms"],
        decision_id=last["decision_id"],
    )


def _row_for(by_entity: Mapping[tuple[str, str], Mapping[str, Any]], throttle: Mapping[str, Any]) -> Mapping[str, Any]:
    for level in Level:
        row = by_entity.get(entity_at(level, throttle["user"], throttle["client_id"]))
        if row is not None and row.get("mode", "enforce") == "enforce" and row.get(throttle["quota_type"]) is not None:
            return row
    return {}


def _totals(used: NewestUsage) -> Totals:
    engine, at_ms = used.facts.settings, used.at_ms
    usage = used.usage
    in_windows = pc.greater(usage["sample_start_ms"], arrow_scalar(at_ms - engine.late_after_ms))
    usage = usage.filter(in_windows)
    if not usage.num_rows:
        return Totals()
    oldest_ms = int(pc.min(usage["sample_start_ms"]).as_py())
    span_seconds = mean_span_seconds(at_ms, oldest_ms, engine.num_samples, engine.sample_window_ms)

    def per_second(*columns: str) -> float:
        return float(sum(pc.sum(usage[column]).as_py() or 0 for column in columns)) / span_seconds

    return Totals(
        clients=usage.group_by(["user", "client_id"], use_threads=False).aggregate([]).num_rows,
        produced_bytes_per_second=per_second("produced_bytes"),
        fetched_bytes_per_second=per_second("fetched_bytes"),
        request_percentage=per_second("io_time_ns", "network_time_ns") * _PERCENT_PER_NS,
    )
