"""The metrics of the job: batches, records, commits, purgatory, throttled clients, and the clocks of brokers."""

import logging
import weakref
from collections import Counter as Counting
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from threading import Lock
from typing import Any, Final, get_args

import pyarrow as pa
import pyarrow.compute as pc
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from pipeline.clock import Clock, SystemClock
from pipeline.settings.model import Settings
from pipeline.stream.job_tables import RatesTable
from pipeline.stream.micro_batch import BatchReport
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.rates import tenant_sums
from pipeline.throttle.publisher import Announce
from pipeline.throttle.purgatory import ThrottlePurgatory
from pipeline.throttle.shapes import CLIENTS
from pipeline.web import ReadAtScrape, new_registry
from quota.entity import QUOTA_TYPES
from quota.tenants import Tenant
from schemas.throttle_record import Target, Verb, verb_of

# The clocks of brokers, by the append times of messages: a partition's leader stamps them with its own clock. No event
# is later than its message. So a clock that is behind makes the usage of its partitions older than it is, and far
# enough behind, too old for the rates.

_SEEN: Final = 5
_KEPT_MS: Final = 300_000
_WARNING_INTERVAL_MS: Final = 60_000


class AppendClocks:
    """How far the clock behind each partition is behind this machine's, at least.

    What a batch has was appended after the batch before it began, if that one read all there was. Append times from
    before that instant are of a clock that is behind. The least of the last 5 batches counts: messages of a transaction
    that took long are readable late. For several threads.

    Args:
        tolerance_ms: What is behind by more is logged, once a minute.
    """

    def __init__(self, tolerance_ms: int) -> None:
        self._tolerance_ms = tolerance_ms
        self._behind_ms: dict[int, deque[int]] = {}
        self._noted_at_ms: dict[int, int] = {}
        self._began_ms: int | None = None
        self._logged_at_ms: int | None = None
        self._lock = Lock()

    def note(self, began_ms: int, newest_append_ms: Mapping[int, int], has_read_all: bool) -> None:
        """Note a batch.

        * `began_ms`: when it began, by this machine's wall clock.
        * `newest_append_ms`: the newest append time of each partition that it has messages of.
        * `has_read_all`: whether it had all the messages that there were.
        """
        with self._lock:
            before_ms, self._began_ms = self._began_ms, began_ms if has_read_all else None
            if before_ms is not None:
                for partition, append_ms in newest_append_ms.items():
                    seen = self._behind_ms.setdefault(partition, deque(maxlen=_SEEN))
                    seen.append(max(before_ms - append_ms, 0))
                    self._noted_at_ms[partition] = began_ms
            for partition in [one for one, noted_ms in self._noted_at_ms.items() if began_ms - noted_ms > _KEPT_MS]:
                del self._behind_ms[partition], self._noted_at_ms[partition]
        self._warn(began_ms)

    def behind_ms(self) -> dict[int, int]:
        """By partition, of those that had messages in the last 5 minutes and in 5 batches."""
        with self._lock:
            return {partition: min(seen) for partition, seen in self._behind_ms.items() if len(seen) == _SEEN}

    def _warn(self, now_ms: int) -> None:
        behind_ms = self.behind_ms()
        worst_ms = max(behind_ms.values(), default=0)
        if worst_ms <= self._tolerance_ms:
            return
        if self._logged_at_ms is not None and abs(now_ms - self._logged_at_ms) < _WARNING_INTERVAL_MS:
            return
        self._logged_at_ms = now_ms
        log.warning("%s", clocks_text(behind_ms, self._tolerance_ms))


def clocks_text(behind_ms: Mapping[int, int], tolerance_ms: int) -> str:
    """Which partitions have a clock that is behind by more than a tolerance, and what to do. At least one has."""
    late = sorted(partition for partition, ms in behind_ms.items() if ms > tolerance_ms)
    worst = f"up to {max(behind_ms.values()) / 1000:.1f} s behind this machine's clock"
    if len(late) == len(behind_ms):
        return f"the append times of all partitions are {worst}. Fix: set the clock of this machine, or of the brokers"
    return (
        f"the append times of partitions {', '.join(map(str, late))} are {worst}, those of the other "
        f"{len(behind_ms) - len(late)} are not. Their usage counts as so much older. "
        "Fix: set the clock of the brokers that lead these partitions"
    )


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunGauges:
    """The parts of one life of the query that are asked at a scrape, by any thread at any time."""

    purgatory: ThrottlePurgatory
    quotas: QuotaSource
    clocks: AppendClocks
    rates: RatesTable


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who wants to hear what the job does. Called on its threads; must be quick and must not raise.

    Attributes:
        announce: For all throttle records written, those of one batch or look together; see `Announce`.
        began: For every start of the query, also after a failure, its gauges. They must be kept only weakly: they hold
            the whole run, which must go away when it ends.
    """

    announce: Announce
    report: Callable[[BatchReport], None]
    committed: Callable[[str], None] = lambda _table: None
    began: Callable[[RunGauges], None] = lambda _gauges: None


def both(first: Listeners, second: Listeners) -> Listeners:
    """Two who hear the same, one after the other."""

    def to_both(name: str) -> Callable[..., None]:
        def notify(*what: Any) -> None:
            getattr(first, name)(*what)
            getattr(second, name)(*what)

        return notify

    return Listeners(to_both("announce"), to_both("report"), to_both("committed"), to_both("began"))


_KINDS: Final = get_args(Verb)
_STEPS: Final = ("collect", "append", "decide", "publish")
_STEP_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_AGE_SECONDS: Final = (0.1, 0.2, 0.3, 0.45, 0.7, 1.0, 2.0, 5.0, 10.0, 60.0)
_DELAY_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_LATENESS_SECONDS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


def job_metrics(settings: Settings, others: Listeners) -> tuple[Listeners, CollectorRegistry]:
    """Who is to hear the job, and the registry that they fill: without a port in the settings only the others hear."""
    registry = new_registry("job")
    if settings.metrics.port is None:
        return others, registry
    return both(others, JobMetrics(registry, SystemClock()).listeners), registry


MOST_CLIENTS: Final = 1_000
"""The most clients that have series."""
IDLE_MS: Final = 900_000
"""A client loses its series when its last throttle ended this long ago."""
ALL_CLIENT_IDS: Final = "*"
"""The label `client_id` of a user that is held with all its client-ids; "" is a client without a client-id."""
_LABELS: Final = (*CLIENTS.names, "quota_type")
_OF_NOW: Final = (*_LABELS, "tenant")


@dataclass(slots=True)
class _Client:
    """The throttles of one target: counts by quota type, and the throttle that runs, or the last one."""

    throttles: Counting[str] = field(default_factory=Counting)
    held_ms: Counting[str] = field(default_factory=Counting)
    held_type: str = ""
    since_ms: int = 0
    until_ms: int = 0

    def settle(self, now_ms: int) -> None:
        """Count the time for which it was held since the last call."""
        self.held_ms[self.held_type] += max(min(now_ms, self.until_ms) - self.since_ms, 0)
        self.since_ms = now_ms


class ThrottledClients:
    """Series of clients and users that were throttled: how often, for how long, and their share of their bound now.

    Below a client is either; a user has `ALL_CLIENT_IDS`, and a client of that name no series.

    Those with the most throttles keep their series. When there is no room, a client that is throttled takes the place
    of the one with the fewest throttles that is not held. The throttles of clients without series are counted together.
    Shares are those of the table `rates`. Any thread may call any method.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._clients: dict[Target, _Client] = {}
        self._unlisted = 0

    def announce(self, written: pa.Table, now_ms: int) -> None:
        """Take records of `WRITTEN` that were written now, by the steady clock."""
        names = (*CLIENTS.names, "quota_type", "action", "cause", "throttle_time_ms")
        rows = zip(*(written[name].to_pylist() for name in names), strict=True)
        with self._lock:
            leaving = self._leaving(now_ms)
            for *who, quota_type, action, cause, throttle_ms in rows:
                begins = verb_of(action, cause) == "throttle"
                key = Target.of(dict(zip(_LABELS, (*who, quota_type), strict=True)))
                client = self._entry(key, leaving) if begins else self._clients.get(key)
                if client is None:
                    self._unlisted += begins
                    continue
                client.settle(now_ms)
                client.throttles[quota_type] += begins
                client.held_type, client.until_ms = quota_type, now_ms + throttle_ms

    def read(self, now_ms: int, rates: pa.Table | None) -> Iterable[Metric]:
        """The series now; without the rows of `rates`, while the query is down, none of shares."""
        throttles = CounterMetricFamily("kquota_client_throttles", "Throttles that began.", labels=_LABELS)
        held = CounterMetricFamily("kquota_client_held_seconds", "Time for which it was held.", labels=_LABELS)
        share = GaugeMetricFamily("kquota_client_share", "Its sensor's rate divided by its bound, now.", labels=_OF_NOW)
        what = "The part of the last minute for which the brokers themselves held it; no sample where they did not."
        by_brokers = GaugeMetricFamily("kquota_client_broker_held_share", what, labels=_OF_NOW)
        with self._lock:
            for key in [key for key, client in self._clients.items() if now_ms - client.until_ms > IDLE_MS]:
                self._forget(key)
            series = []
            for key, client in self._clients.items():
                client.settle(now_ms)
                labels = key.broker_id, key.user, _label(key.client_id)
                series += [(*labels, quota_type) for quota_type in client.throttles | client.held_ms if quota_type]
                for quota_type in client.throttles:
                    throttles.add_metric([*labels, quota_type], client.throttles[quota_type])
                    held.add_metric([*labels, quota_type], client.held_ms[quota_type] / 1000)
            unlisted = self._unlisted
        for *one, of_bound, of_minute in [] if rates is None else _shares(rates, series):
            share.add_metric(one, of_bound)
            if of_minute is not None:
                by_brokers.add_metric(one, of_minute)
        yield from (throttles, held, share, by_brokers)
        what = "Throttles that began, of clients without series."
        yield CounterMetricFamily("kquota_unlisted_client_throttles", what, unlisted)

    def _leaving(self, now_ms: int) -> list[Target]:
        """Clients that may lose their series, those with the fewest throttles last."""
        if len(self._clients) < MOST_CLIENTS:
            return []
        free = [(client.throttles.total(), key) for key, client in self._clients.items() if client.until_ms <= now_ms]
        return [key for _, key in sorted(free, key=lambda one: one[0], reverse=True)]

    def _entry(self, key: Target, leaving: list[Target]) -> _Client | None:
        if key in self._clients:
            return self._clients[key]
        if key.client_id == ALL_CLIENT_IDS:
            return None
        if len(self._clients) >= MOST_CLIENTS:
            if not leaving:
                return None
            self._forget(leaving.pop())
        return self._clients.setdefault(key, _Client())

    def _forget(self, key: Target) -> None:
        self._unlisted += self._clients.pop(key).throttles.total()


def _shares(rates: pa.Table, series: Sequence[tuple[str, ...]]) -> list[tuple[Any, ...]]:
    """The labels and both shares of clients with series: of `rates` the enforced rows that name one of them."""
    users = pa.array({user for _, user, *_ in series}, pa.string())
    names_one = pc.or_(pc.is_valid(rates["own_rate"]), pc.is_null(rates["client_id"]))
    of_client = pc.and_(pc.is_in(rates["user"], users), pc.and_(names_one, _is_enforced(rates)))
    shown = set(series)
    found = rates.filter(of_client).select([*_OF_NOW, "share", "broker_held_share"]).to_pylist()
    rows = [row | {"client_id": _label(row["client_id"]), "tenant": row["tenant"] or ""} for row in found]
    return [tuple(row.values()) for row in rows if tuple(row[name] for name in _LABELS) in shown]


def _label(client_id: str | None) -> str:
    return ALL_CLIENT_IDS if client_id is None else client_id


def _is_enforced(rates: pa.Table) -> "pa.ChunkedArray":
    return pc.fill_null(pc.equal(rates["mode"], "enforce"), False)


MOST_TENANTS: Final = 1_000
"""The most tenants and quota types that have series."""
_TENANT_LABELS: Final = ("tenant", "broker_id", "quota_type")


def tenant_series(rates: pa.Table | None, tenants: Sequence[Tenant]) -> Iterable[Metric]:
    """What the members of each tenant use now, by the rows of `rates`; None, while the query is down, gives none.

    The fullest tenants have series. One without usage has none, and neither has one in shadow mode.
    """
    what = "What its members use together now, per second; of request_percentage percent of one thread."
    used = GaugeMetricFamily("kquota_tenant_rate", what, labels=_TENANT_LABELS)
    whole = GaugeMetricFamily("kquota_tenant_bound", "Its bound, in the unit of its rate.", labels=_TENANT_LABELS)
    what = "How many times its own bound a member may use now; no sample while all that is wanted fits."
    level = GaugeMetricFamily("kquota_tenant_level", what, labels=_TENANT_LABELS)
    enforced = [one for one in tenants if not one.is_shadow]
    for row in tenant_sums(rates, enforced)[:MOST_TENANTS] if rates is not None and enforced else ():
        labels = [row[name] for name in _TENANT_LABELS]
        used.add_metric(labels, row["used"])
        whole.add_metric(labels, row["bound"])
        if row["tenant_level"] is not None:
            level.add_metric(labels, row["tenant_level"])
    yield from (used, whole, level)


class JobMetrics:
    """Fills a registry from the job's events; `listeners` is given to it."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._clock = clock
        self._gauges: weakref.ref[RunGauges] | None = None
        registry.register(ReadAtScrape(self._read_run))
        registry.register(ReadAtScrape(self._read_time))
        registry.register(ReadAtScrape(self._read_clients))
        self._clients = ThrottledClients()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self._starts = counter("kquota_query_starts", "Starts of the streaming query.")
        self._batches = counter("kquota_batches", "Micro-batches.")
        self._last_batch = gauge(
            "kquota_last_batch_timestamp_seconds",
            "When the newest micro-batch was done; before the first one, when this process began.",
        )
        self._last_batch.set(self._now_seconds())
        what = "Time of a step of a micro-batch."
        self._step = Histogram(
            "kquota_batch_duration_seconds", what, ("phase",), registry=registry, buckets=_STEP_SECONDS
        )
        what = "Age of a micro-batch's newest event when its records were readable."
        self._age = Histogram("kquota_batch_age_seconds", what, registry=registry, buckets=_AGE_SECONDS)
        self._events = {
            "good_count": counter("kquota_events", "Usage events that were accepted, also late ones."),
            "late_count": counter("kquota_late_events", "Events too old for the rate."),
            "clamped_count": counter("kquota_clamped_events", "Events whose time was set back."),
            "ignored_count": counter("kquota_ignored_messages", "Messages without any event."),
            "dead_count": counter("kquota_dead_letters", "Elements and messages that were refused."),
            "folded_count": counter("kquota_folded_events", "Events beyond a user's 1 000 new client-ids an hour."),
        }
        self._dead = counter("kquota_events_rejected", "The same, by cause.", ("reason",))
        self._decisions = counter("kquota_throttle_decisions", "Violations that were decided.")
        self._records = counter("kquota_throttle_records", "Records of the throttle topic.", ("kind", "quota_type"))
        what = "Length of a published throttle."
        self._delay = Histogram("kquota_throttle_delay_seconds", what, registry=registry, buckets=_DELAY_SECONDS)
        what = "How long after it was due a check was handed out."
        self._lateness = Histogram(
            "kquota_purgatory_lateness_seconds", what, registry=registry, buckets=_LATENESS_SECONDS
        )
        self._batch_quotas = gauge("kquota_batch_config_version", "Quota version of the newest micro-batch.")
        self._time_epoch = gauge(
            "kquota_time_epoch", "How often event time has begun again, after a clock was set back."
        )
        what = "When rows were last written."
        self._commits = gauge("kquota_table_last_commit_timestamp_seconds", what, ("table",))
        self._evaluated_ms: int | None = None
        for phase in _STEPS:
            self._step.labels(phase)
        for kind, quota_type in product(_KINDS, QUOTA_TYPES):
            # There from the start: an increase from nothing is none to Prometheus.
            self._records.labels(kind, quota_type)

    @property
    def listeners(self) -> Listeners:
        """Receives the job's events."""
        return Listeners(self._announce, self._report, self._committed, self._began)

    def _report(self, report: BatchReport) -> None:
        facts = report.facts
        self._batches.inc()
        self._last_batch.set(self._now_seconds())
        for phase in _STEPS:
            self._step.labels(phase).observe(getattr(report, f"{phase}_ms") / 1000)
        self._age.observe(max(report.age_ms, 0) / 1000)
        for name, events in self._events.items():
            events.inc(getattr(facts, name))
        for cause, count in report.dead_causes.items():
            self._dead.labels(cause).inc(count)
        self._decisions.inc(report.violations)
        self._batch_quotas.set(facts.evaluation.quota_version)
        self._time_epoch.set(facts.evaluation.time_epoch)
        self._evaluated_ms = facts.evaluation.evaluated_at_ms

    def _announce(self, written: pa.Table, _quota_version: int) -> None:
        keys = ["action", "cause", "quota_type"]
        for row in written.group_by(keys, use_threads=False).aggregate([([], "count_all")]).to_pylist():
            kind = verb_of(row["action"], row["cause"])
            self._records.labels(kind, row["quota_type"]).inc(row["count_all"])
        is_throttle = pc.equal(written["action"], "throttle")
        for ms in written["throttle_time_ms"].filter(is_throttle).to_pylist():
            self._delay.observe(ms / 1000)
        for ms in written["lateness_ms"].drop_null().to_pylist():
            self._lateness.observe(ms / 1000)
        self._clients.announce(written, self._clock.now().steady_ms)

    def _committed(self, table: str) -> None:
        self._commits.labels(table).set(self._now_seconds())

    def _began(self, gauges: RunGauges) -> None:
        self._gauges = weakref.ref(gauges)
        self._starts.inc()

    def _read_time(self) -> Iterable[Metric]:
        if self._evaluated_ms is not None:
            ahead_seconds = self._evaluated_ms / 1000 - self._now_seconds()
            yield GaugeMetricFamily(
                "kquota_evaluated_ahead_seconds",
                "Time of the newest micro-batch, minus the wall clock; below 0 = that long ago.",
                ahead_seconds,
            )

    def _read_clients(self) -> Iterable[Metric]:
        gauges = None if self._gauges is None else self._gauges()
        rates = None if gauges is None else gauges.rates.rows
        yield from self._clients.read(self._clock.now().steady_ms, rates)
        yield from tenant_series(rates, () if gauges is None else gauges.quotas.pin().tenants)

    def _read_run(self) -> Iterable[Metric]:
        gauges = None if self._gauges is None else self._gauges()
        if gauges is None:  # the query is down
            return
        due_ms = gauges.purgatory.next_due_ms()
        overdue_ms = 0 if due_ms is None else max(self._clock.now().steady_ms - due_ms, 0)
        quotas = gauges.quotas
        for name, documentation, value in (
            (
                "kquota_purgatory_size",
                "Throttles in force: clients, and users for a quota type.",
                len(gauges.purgatory),
            ),
            ("kquota_purgatory_overdue_seconds", "How long the next check has been due.", overdue_ms / 1000),
            ("kquota_config_version", "Version of the quotas in force.", quotas.pin().version),
            ("kquota_config_refused", "1 while the newest version of the quotas is refused.", quotas.is_refused()),
        ):
            yield GaugeMetricFamily(name, documentation, value)
        what = "Replacements of the table rates that failed."
        yield CounterMetricFamily("kquota_rates_failures", what, gauges.rates.failures)
        what = "How far the clock that stamps a partition of the usage topic is behind the job's, at least."
        clocks = GaugeMetricFamily("kquota_partition_clock_behind_seconds", what, labels=("partition",))
        for partition, behind_ms in sorted(gauges.clocks.behind_ms().items()):
            clocks.add_metric([str(partition)], behind_ms / 1000)
        yield clocks

    def _now_seconds(self) -> float:
        return self._clock.now().wall_ms / 1000
