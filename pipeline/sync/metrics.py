"""What `kquota quotas sync` tells Prometheus: of every period."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from pipeline.clock import Clock
from quota.broker_sync import BrokerSync


class SyncMetrics:
    """Fills a registry, a period at a time.

    Args:
        registry: Of this process.
        clock: Its wall clock dates periods.
    """

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._clock = clock
        self._periods = Counter("kquota_sync_periods", "Periods that went well.", registry=registry)
        self._failures = Counter("kquota_sync_failed_periods", "Periods that failed.", registry=registry)
        self._changes = Counter("kquota_sync_changes", "Values that the brokers took.", registry=registry)
        self._last = Gauge(
            "kquota_sync_last_period_timestamp_seconds",
            "When the last good period ended; before the first one, when this process began.",
            registry=registry,
        )
        self._last.set(clock.now().wall_ms / 1000)
        self._owned = Gauge("kquota_sync_owned_values", "Values on the brokers that are kquota's.", registry=registry)
        self._drifts = Gauge("kquota_sync_drifts", "Values that others wrote and the sync leaves.", registry=registry)
        self._refused = Gauge("kquota_sync_refused_values", "Values that can not be written.", registry=registry)
        self._unplaced = Gauge(
            "kquota_sync_unplaced_bytes", "Usage so far that names no broker of the cluster.", registry=registry
        )

    def period_done(self, control: BrokerSync, changes: int) -> None:
        """A period went well.

        Args:
            control: What is known after it.
            changes: How many values the brokers took.
        """
        self._periods.inc()
        self._changes.inc(changes)
        self._last.set(self._clock.now().wall_ms / 1000)
        self._owned.set(len(control.owned))
        self._drifts.set(len(control.drifts))
        self._refused.set(len(control.refused))
        self._unplaced.set(control.unplaced_bytes)

    def period_failed(self) -> None:
        """A period failed; it is tried again."""
        self._failures.inc()
