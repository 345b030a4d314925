"""An alerter over real tables, whose time is set by hand and whose messages are sent by whoever tests it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from pipeline.alerts.alerter import Alerter, AlertsMetrics, Delivery, deliveries_of, look_at, own_state, state_path
from pipeline.alerts.receivers import receivers_of
from pipeline.process import JobSigns
from pipeline.settings.model import AlertsSettings, Settings, TablesSettings

KEY = "a key of the tests, long enough"


class Told:
    """One process that tells alerts; a second one with the same folder is its successor.

    Args:
        root: Of the tables.
        folder: For the state.
        webhooks: Name to URL.
        alerts: Further settings.
        is_idle: Whether the job waits for usage.
        steady_seconds: The clock of the rests between tries; it stands still by default.
    """

    def __init__(
        self,
        root: str,
        folder: Path,
        webhooks: Mapping[str, str],
        *,
        is_idle: bool = False,
        steady_seconds: Callable[[], float] = lambda: 0.0,
        **alerts: Any,
    ) -> None:
        self._now_ms = 0
        self.settings = Settings(
            job="shop",
            run_dir=folder,
            tables=TablesSettings(root=root),
            alerts=AlertsSettings.model_validate(
                {"webhooks": webhooks, "timeout_ms": 60_000, "resolve_after_ms": 10_000, **alerts}
            ),
        )
        self.registry = CollectorRegistry()
        metrics = AlertsMetrics(self.registry)
        # Its lock is not held: a process that was killed has let go of it, too.
        with own_state(state_path(self.settings)) as state:
            self.deliveries: list[Delivery] = deliveries_of(
                receivers_of(self.settings), state, self.settings.alerts, metrics, steady_seconds
            )
            self.facts_at = look_at(self.settings, JobSigns(lambda: "7", lambda: self._now_ms if is_idle else None))
            self.alerter = Alerter(self.settings, self.facts_at, self.deliveries, metrics, state)

    def look(self, now_ms: int, *, send: bool = True) -> None:
        """Look once, and try to send all that waits."""
        self._now_ms = now_ms
        self.alerter.step(now_ms)
        if send:
            self.send()

    def send(self) -> None:
        """One try for each message that waits."""
        for delivery in self.deliveries:
            for _ in delivery.waiting():
                delivery.step()

    def metric(self, name: str, **labels: str) -> float:
        found = self.registry.get_sample_value(f"kquota_alerts_{name}", labels)
        assert found is not None, f"{name} is not told"
        return found
