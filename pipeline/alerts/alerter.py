"""The loop: look at the tables, decide, keep the state, hand messages to the receivers."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pipeline.alerts.decision import Rules, decide
from pipeline.alerts.delivery import Delivery
from pipeline.alerts.errors import AlertsAreRunning
from pipeline.alerts.facts import Facts
from pipeline.alerts.metrics import AlertsMetrics
from pipeline.alerts.payload import Message, messages_of
from pipeline.alerts.receiver import Receiver
from pipeline.alerts.state_file import AlertsState, read_state, state_path, write_state
from pipeline.clock import wall_ms
from pipeline.process_lock import LockHeld, ProcessLock
from pipeline.settings.alerts import AlertsSettings
from pipeline.settings.model import Settings

log = logging.getLogger(__name__)

_MOST_LINES: Final = 200
"""So many changes of one look get a line each in the log."""

Look = Callable[[int], Facts]
"""All that is known at an instant."""


class Alerter:
    """Makes one look after the other. Not for several threads.

    Args:
        settings: The whole tree.
        look: See `Look`.
        deliveries: One for each receiver.
        metrics: Hear of every look.
        state: What the state file had; see `deliveries_of` for what was undelivered.
    """

    def __init__(
        self,
        settings: Settings,
        look: Look,
        deliveries: Sequence[Delivery],
        metrics: AlertsMetrics,
        state: AlertsState,
    ) -> None:
        self._settings = settings
        self._look = look
        self._deliveries = deliveries
        self._metrics = metrics
        self._path = state_path(settings)
        self._book = state.book
        self._saved: AlertsState | None = None

    def step(self, now_ms: int) -> None:
        """One look, at an instant of the wall clock. One that fails changes nothing, is told, and is made again."""
        try:
            facts = self._look(now_ms)
        except Exception:
            log.exception("the alerts could not be looked for; it is tried again")
            return
        alerts = self._settings.alerts
        rules = Rules(alerts.resolve_after_ms, alerts.repeat_ms)
        self._book, changes = decide(self._book, facts, now_ms, rules)
        messages = messages_of(changes, self._book, self._settings.job, alerts.external_url)
        # First the file: what a receiver hears of is known after a crash, too.
        self._save({one.name: [*one.waiting(), *messages] for one in self._deliveries})
        for delivery in self._deliveries:
            delivery.put(messages)
        self._metrics.looked(self._book, ((one.name, len(one.waiting())) for one in self._deliveries), now_ms)
        for change in changes[:_MOST_LINES]:
            log.info("%s %s: %s", change.status, change.key[0], change.watched.annotations.get("summary", ""))
        if len(changes) > _MOST_LINES:
            log.info("and %d more alerts at the same time", len(changes) - _MOST_LINES)

    def run(self, wait: Callable[[float], bool], now: Callable[[], int] = wall_ms) -> None:
        """Look until told to stop.

        Args:
            wait: Rests some seconds; True = stop.
            now: The wall clock.
        """
        for delivery in self._deliveries:
            delivery.start()
        try:
            self.step(now())
            while not wait(self._settings.alerts.look_every_ms / 1000):
                self.step(now())
        finally:
            for delivery in self._deliveries:
                delivery.close()
            self._save({one.name: one.waiting() for one in self._deliveries})

    def _save(self, undelivered: Mapping[str, Sequence[Message]]) -> None:
        """Write the state if it has changed; what could not be written is written at the next look."""
        state = AlertsState(self._book, undelivered)
        if state == self._saved:
            return
        try:
            write_state(self._path, state)
        except OSError as exc:
            self._metrics.could_not_save()
            log.warning("%s can not be written (%s): a crash would repeat or lose alerts", self._path, exc.strerror)
        else:
            self._saved = state


def deliveries_of(
    receivers: Sequence[Receiver],
    state: AlertsState,
    settings: AlertsSettings,
    metrics: AlertsMetrics,
    steady_seconds: Callable[[], float] = time.monotonic,
) -> list[Delivery]:
    """A queue for each receiver, with what an earlier process left undelivered."""
    for name in state.undelivered.keys() - {receiver.name for receiver in receivers}:
        count = len(state.undelivered[name])
        log.warning("%s is no receiver any more: %d messages for it are dropped", name, count)
    return [
        Delivery(
            receiver,
            state.undelivered.get(receiver.name, ()),
            settings.queue_messages,
            settings.longest_retry_ms,
            metrics.of_receiver(receiver.name),
            steady_seconds,
        )
        for receiver in receivers
    ]


@contextmanager
def own_state(path: Path) -> Iterator[AlertsState]:
    """The state file, for this process alone while the block runs.

    Raises:
        AlertsAreRunning: Another process has it.
        OSError: It can not be read, or its folder not be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f"{path.name}.lock")
    try:
        with ProcessLock(lock):
            yield read_state(path)
    except LockHeld as exc:
        raise AlertsAreRunning(path, exc.holder) from exc
