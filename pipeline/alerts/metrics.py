"""What `kquota alerts run` tells Prometheus."""

from collections import Counter as CountBy
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from pipeline.alerts.decision import Book
from pipeline.alerts.facts import ALERTS

_OF_RECEIVER = ["receiver"]


class AlertsMetrics:
    """Fills a registry.

    Args:
        registry: Of this process.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._firing = Gauge("kquota_alerts_firing", "Alerts that go on.", ["alertname"], registry=registry)
        self._last = Gauge(
            "kquota_alerts_last_look_timestamp_seconds", "When the tables were last looked at.", registry=registry
        )
        self._unsaved = Counter(
            "kquota_alerts_state_failures", "Times that the state file could not be written.", registry=registry
        )
        self._sent = Counter("kquota_alerts_sent", "Alerts the receiver took.", _OF_RECEIVER, registry=registry)
        self._failed = Counter(
            "kquota_alerts_failed_tries", "Messages that did not arrive and are sent again.", _OF_RECEIVER,
            registry=registry,
        )  # fmt: skip
        self._dropped = Counter(
            "kquota_alerts_dropped", "Alerts that were dropped, as too many waited.", _OF_RECEIVER, registry=registry
        )
        self._refused = Counter(
            "kquota_alerts_refused", "Alerts the receiver refused for good.", _OF_RECEIVER, registry=registry
        )
        self._waiting = Gauge(
            "kquota_alerts_waiting_messages", "Messages not yet delivered.", _OF_RECEIVER, registry=registry
        )

    def of_receiver(self, name: str) -> "ReceiverCounts":
        """The counts of one receiver, all told from the start, as 0."""
        return ReceiverCounts(
            self._sent.labels(name), self._failed.labels(name), self._dropped.labels(name), self._refused.labels(name)
        )

    def looked(self, book: Book, waiting: Iterable[tuple[str, int]], now_ms: int) -> None:
        """A look is done.

        Args:
            book: What goes on.
            waiting: Names of receivers, and how many messages wait for each.
            now_ms: Wall clock.
        """
        self._last.set(now_ms / 1000)
        firing = CountBy(key[0] for key, watched in book.items() if watched.is_firing)
        for name in ALERTS:
            self._firing.labels(name).set(firing[name])
        for receiver, count in waiting:
            self._waiting.labels(receiver).set(count)

    def could_not_save(self) -> None:
        """The state file could not be written."""
        self._unsaved.inc()


class ReceiverCounts:
    """Counts what becomes of the messages of one receiver; for any thread.

    Args:
        sent: Alerts that arrived.
        failed: Tries that failed.
        dropped: Alerts that did not fit.
        refused: Alerts that the receiver will never take.
    """

    def __init__(self, sent: Counter, failed: Counter, dropped: Counter, refused: Counter) -> None:
        self._sent, self._failed, self._dropped, self._refused = sent, failed, dropped, refused

    def sent(self, alerts: int) -> None:
        """A message has arrived."""
        self._sent.inc(alerts)

    def failed(self) -> None:
        """A try has failed."""
        self._failed.inc()

    def dropped(self, alerts: int) -> None:
        """A message did not fit."""
        self._dropped.inc(alerts)

    def refused(self, alerts: int) -> None:
        """A message will never be taken."""
        self._refused.inc(alerts)
