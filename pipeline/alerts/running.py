"""The life of `kquota alerts run`, and the test of receivers."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry

from pipeline.activity import JobSigns
from pipeline.alerts.alerter import Alerter, deliveries_of, own_state
from pipeline.alerts.dead_letters import RecentDeadLetters
from pipeline.alerts.decision import Change, Watched
from pipeline.alerts.facts import Facts
from pipeline.alerts.judging import facts_of
from pipeline.alerts.metrics import AlertsMetrics
from pipeline.alerts.payload import messages_of
from pipeline.alerts.receiver import Answer, Receiver
from pipeline.alerts.receivers import receivers_of
from pipeline.alerts.state_file import state_path
from pipeline.dashboard.reader import TablesReader
from pipeline.settings.model import Settings

log = logging.getLogger(__name__)

TEST_ALERT: Final = "KquotaTest"


def run_alerts(
    settings: Settings,
    signs: JobSigns,
    registry: CollectorRegistry,
    wait: Callable[[float], bool],
) -> None:
    """Tell the receivers of the settings until told to stop.

    Args:
        settings: The whole tree.
        signs: Of the job.
        registry: Of this process.
        wait: Rests some seconds; True = stop.

    Raises:
        ReceiversMissing, ReceiversInvalid: There is nobody to tell, or a receiver can not be used.
        AlertsAreRunning: Another process tells the same alerts.
    """
    receivers = receivers_of(settings)
    with own_state(state_path(settings)) as state:
        metrics = AlertsMetrics(registry)
        deliveries = deliveries_of(receivers, state, settings.alerts, metrics)
        log.info("alerts go to %s", ", ".join(f"{one.name} ({one.place})" for one in receivers))
        Alerter(settings, look_at(settings, signs), deliveries, metrics, state).run(wait)


def look_at(settings: Settings, signs: JobSigns) -> Callable[[int], Facts]:
    """What looks at the tables of the settings; see `run_alerts`."""
    reader = TablesReader(settings.tables.root, signs, settings.scope)
    dead_letters = RecentDeadLetters(reader, settings.alerts.dead_letters_ms)

    def look(now_ms: int) -> Facts:
        state = reader.look(now_ms)
        return facts_of(state, dead_letters.count(now_ms), signs.is_idle(now_ms), settings.alerts)

    return look


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a test message.

    Attributes:
        receiver: Its name.
        place: Where it is, without secrets.
        answer: What it said.
        took_ms: After how long.
    """

    receiver: str
    place: str
    answer: Answer
    took_ms: int


def try_receivers(settings: Settings, now_ms: int) -> Iterator[Trial]:
    """Send one test alert to each receiver, once.

    Raises:
        ReceiversMissing, ReceiversInvalid: As of `run_alerts`.
    """
    labels = {"alertname": TEST_ALERT, "severity": "info"}
    annotations = {"summary": "a test of kquota's alerts: nothing is wrong", "action": "nothing is to be done"}
    key = (TEST_ALERT, str(now_ms))
    watched = Watched(now_ms, now_ms, None, labels, annotations)
    change, external_url = Change("firing", key, watched), settings.alerts.external_url
    (message,) = messages_of([change], {key: watched}, settings.job, external_url)
    return map(partial(_tried, message), receivers_of(settings))


def _tried(message: dict[str, object], receiver: Receiver) -> Trial:
    began = time.monotonic()
    try:
        answer = receiver.send(message)
    finally:
        receiver.close()
    return Trial(receiver.name, receiver.place, answer, round((time.monotonic() - began) * 1000))
