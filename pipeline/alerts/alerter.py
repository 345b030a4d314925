"""The loop of `kquota alerts run`: look at the tables, decide, keep the state, deliver messages to the receivers."""

import json
import logging
import os
import random
import re
import time
from collections import Counter as CountBy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from threading import Lock
from typing import Final, Self

from prometheus_client import CollectorRegistry, Counter, Gauge

from pipeline.alerts.judging import ALERTS, Book, Change, Facts, RecentDeadLetters, Watched, decide, facts_of
from pipeline.alerts.receivers import Answer, Message, Receiver, fingerprint, messages_of, receivers_of
from pipeline.clock import wall_ms
from pipeline.dashboard.reader import TablesReader
from pipeline.errors import Conflict, UsageError, first_line
from pipeline.process import Background, JobSigns, LockHeld, ProcessLock
from pipeline.settings.model import AlertsSettings, Settings
from quota.units import age_text

# What survives a restart: firing alerts, and messages that have not arrived. It is written before a message is handed
# to a receiver, so a process that dies repeats a message (same `fingerprint` and `startsAt`) and loses none.

log = logging.getLogger(__name__)

_VERSION: Final = 1
_NAMES: Final = tuple(each.name for each in fields(Watched))


@dataclass(frozen=True, slots=True)
class AlertsState:
    """What is kept: the book of `decide`, and by receiver the messages that have not arrived."""

    book: Book = field(default_factory=dict)
    undelivered: Mapping[str, Sequence[Message]] = field(default_factory=dict)

    def text(self) -> str:
        """As JSON."""
        # Not by `asdict`, which copies every label of 10^5 alerts.
        watched = [{"key": key, **{name: getattr(one, name) for name in _NAMES}} for key, one in self.book.items()]
        return json.dumps({"version": _VERSION, "watched": watched, "undelivered": self.undelivered})

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read what `text` wrote. Raises ValueError, KeyError or TypeError if it is something else."""
        document = json.loads(text)
        if document["version"] != _VERSION:
            msg = f"the state has version {document['version']}, not {_VERSION}"
            raise ValueError(msg)
        return cls({tuple(row.pop("key")): Watched(**row) for row in document["watched"]}, document["undelivered"])


def state_path(settings: Settings) -> Path:
    """Where the state of a job's alerts is kept."""
    return settings.alerts.state_file or settings.run_dir / f"{settings.job}.alerts.json"


def read_state(path: Path) -> AlertsState:
    """The state, or an empty one if there is none.

    A file that cannot be understood is renamed to `<name>.damaged` with a log line; firing alerts are then sent again.
    """
    try:
        return AlertsState.from_text(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return AlertsState()
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        aside = path.with_name(f"{path.name}.damaged")
        path.replace(aside)
        log.warning("%s is not the state of alerts (%s): it is now %s, and firing alerts are sent again",
                    path, exc, aside)  # fmt: skip
        return AlertsState()


def _replace(path: Path, text: str) -> None:
    """Replace the file in one step: after a crash it holds the old text or the new one."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


# Silences: by `kquota alerts silence`, each of one alert until an end, in a file next to the state.

_FINGERPRINT: Final = re.compile("[0-9a-f]{16}")
_LONGEST_SILENCE_MS: Final = 30 * 86_400_000


def silences_path(settings: Settings) -> Path:
    """Where the silences of a job's alerts are kept."""
    state = state_path(settings)
    return state.with_name(f"{state.stem}.silences.json")


def read_silences(path: Path, now_ms: int) -> dict[str, int]:
    """The end of each silence that lasts at an instant, by fingerprint; it is exclusive. A damaged file has none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): int(end_ms) for name, end_ms in found.items() if int(end_ms) > now_ms}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as exc:
        log.warning("%s has no silences (%s): all alerts are sent", path, first_line(exc))
        return {}


def silence(settings: Settings, name: str, span_ms: int, now_ms: int) -> tuple[Watched | None, int]:
    """Silence the alert of a fingerprint from now on, 0 = no longer; what it is about if it is known, and the end.

    Raises:
        UsageError: It is not a fingerprint, or the span is longer than 30 days.
    """
    if not _FINGERPRINT.fullmatch(name):
        msg = f"{name[:40]!r} is not the fingerprint of an alert"
        raise UsageError(msg, "each message has one, as 6f1d0b6c6b8a2f7e, and the whole command in 'silence'")
    if span_ms > _LONGEST_SILENCE_MS:
        msg = f"a silence of {age_text(span_ms)} is longer than {age_text(_LONGEST_SILENCE_MS)}"
        raise UsageError(msg, "change the settings of alerts, or the quota, where nothing is to be sent for good")
    path = silences_path(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, json.dumps({**read_silences(path, now_ms), name: now_ms + span_ms}))
    try:
        book = AlertsState.from_text(state_path(settings).read_text(encoding="utf-8")).book
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        book = {}
    return next((one for key, one in book.items() if fingerprint(key) == name), None), now_ms + span_ms


# Metrics.


_COUNTS: Final = (
    ("sent", "Alerts the receiver took."),
    ("failed_tries", "Messages that did not arrive and are retried."),
    ("dropped", "Alerts that were dropped, as too many waited."),
    ("refused", "Alerts the receiver refused for good."),
)


class AlertsMetrics:
    """Fills a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._firing = Gauge("kquota_alerts_firing", "Alerts that are firing.", ["alertname"], registry=registry)
        self._last = Gauge(
            "kquota_alerts_last_look_timestamp_seconds", "Time of the last look at the tables.", registry=registry
        )
        self.unsaved = Counter(
            "kquota_alerts_state_failures", "Times that the state file could not be written.", registry=registry
        )
        about = ["receiver"]
        self._counts = {
            name: Counter(f"kquota_alerts_{name}", text, about, registry=registry) for name, text in _COUNTS
        }
        self._waiting = Gauge("kquota_alerts_waiting_messages", "Messages not yet delivered.", about, registry=registry)

    def of_receiver(self, receiver: str) -> dict[str, Counter]:
        """The counts of one receiver, by the names of `_COUNTS`; all are shown from the start, as 0."""
        return {name: counter.labels(receiver) for name, counter in self._counts.items()}

    def looked(self, book: Book, waiting: Iterable[tuple[str, int]], now_ms: int) -> None:
        """A look is done."""
        self._last.set(now_ms / 1000)
        firing = CountBy(key[0] for key, watched in book.items() if watched.is_firing)
        for name in ALERTS:
            self._firing.labels(name).set(firing[name])
        for receiver, count in waiting:
            self._waiting.labels(receiver).set(count)


# Delivery to one receiver, in order, on its own thread: a receiver that is down delays no other.

_FIRST_REST_MS: Final = 1_000
_IDLE_SECONDS: Final = 0.1
_END_SECONDS: Final = 2.0


def rest_ms(failures: int, longest_ms: int, jitter: float) -> int:
    """How long to rest after failures in a row, at least 1: twice as long each time, capped, and spread by chance.

    The jitter from 0 to 1 makes it between half of the whole and all of it.

    >>> [rest_ms(failures, 10_000, 1.0) for failures in (1, 2, 4, 5, 900)]
    [1000, 2000, 8000, 10000, 10000]
    >>> rest_ms(5, 10_000, 0.0)
    5000
    """
    whole_ms = min(_FIRST_REST_MS << min(failures - 1, 20), longest_ms)
    return round(whole_ms * (0.5 + jitter / 2))


class Delivery:
    """The queue of one receiver, which its own thread alone uses. `put` and `waiting` are for any thread.

    It begins with what an earlier process left undelivered, oldest first. When more than `queue_messages` wait, the
    oldest is dropped, counted and logged.
    """

    def __init__(
        self,
        receiver: Receiver,
        messages: Iterable[Message],
        settings: AlertsSettings,
        counts: Mapping[str, Counter],
        steady_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = receiver.name
        self._receiver = receiver
        self._queue: deque[Message] = deque()
        self._under_way: Message | None = None
        self._settings = settings
        self._counts = counts
        self._steady_seconds = steady_seconds
        self._failures = 0
        self._not_before = 0.0
        self._lock = Lock()
        self._thread = Background(f"alerts-{receiver.name}", self.step, self._ended)
        self.put(messages)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def close(self) -> None:
        """End after the message under way, or after two seconds. What waits is left for the next process."""
        self._thread.close(_END_SECONDS)
        self._receiver.close()

    def put(self, messages: Iterable[Message]) -> None:
        """Add messages at the end."""
        dropped = 0
        with self._lock:
            for message in messages:
                self._queue.append(message)
                if len(self._queue) > self._settings.queue_messages:
                    dropped += len(self._queue.popleft()["alerts"])
        if dropped:
            self._counts["dropped"].inc(dropped)
            log.warning("%s: %d alerts were dropped, as too many messages wait", self.name, dropped)

    def waiting(self) -> list[Message]:
        """What is not delivered, oldest first; also what is just being sent."""
        with self._lock:
            return [*([] if self._under_way is None else [self._under_way]), *self._queue]

    def step(self) -> float:
        """Try to send the oldest message, if its time has come; returns for how many seconds to rest."""
        left = self._not_before - self._steady_seconds()
        if left > 0:
            return min(left, _IDLE_SECONDS)
        with self._lock:
            if self._under_way is None and self._queue:
                self._under_way = self._queue.popleft()
            message = self._under_way
        if message is None:
            return _IDLE_SECONDS
        answer = self._sent(message)
        if answer.verdict == "later":
            self._failed(answer)
        else:
            self._settle(answer, len(message["alerts"]))
        return 0.0

    def _sent(self, message: Message) -> Answer:
        try:
            return self._receiver.send(message)
        except Exception as exc:  # a defect must not end the thread: what waits would never arrive
            log.exception("%s: a message could not be sent", self.name)
            return Answer("later", first_line(exc))

    def _settle(self, answer: Answer, alerts: int) -> None:
        with self._lock:
            self._under_way = None
        if answer.verdict == "taken":
            self._counts["sent"].inc(alerts)
        else:
            self._counts["refused"].inc(alerts)
            log.error("%s refuses %d alerts, which are dropped: %s", self.name, alerts, answer.text)
        if self._failures:
            log.info("%s answers after %d failures", self.name, self._failures)
        self._failures = 0

    def _failed(self, answer: Answer) -> None:
        self._failures += 1
        self._counts["failed_tries"].inc()
        longest_ms, jitter = self._settings.longest_retry_ms, random.random()  # noqa: S311 - no secret
        self._not_before = self._steady_seconds() + rest_ms(self._failures, longest_ms, jitter) / 1000
        write = log.warning if self._failures == 1 else log.debug
        write("%s: %s; retried with back-off until it works", self.name, answer.text)

    def _ended(self, failure: BaseException) -> None:
        log.error("%s: no alert is sent any more: %s", self.name, failure)


_MOST_LINES: Final = 200
"""So many changes of one look get a line each in the log."""


@dataclass(slots=True)
class Alerter:
    """Makes one look after the other. Not for several threads.

    Attributes:
        state: As read at the start, and then as it was last decided.
    """

    settings: Settings
    look: Callable[[int], Facts]
    deliveries: Sequence[Delivery]
    metrics: AlertsMetrics
    state: AlertsState
    _saved: AlertsState | None = field(default=None, init=False)

    def step(self, now_ms: int) -> None:
        """One look, at an instant of the wall clock. One that fails changes nothing, is logged, and is repeated."""
        try:
            facts = self.look(now_ms)
        except Exception:
            log.exception("the alerts could not be evaluated; it is retried")
            return
        alerts = self.settings.alerts
        silenced = read_silences(silences_path(self.settings), now_ms)
        book, changes = decide(
            self.state.book, facts, now_ms, alerts, lambda key: bool(silenced) and fingerprint(key) in silenced
        )
        messages = messages_of(changes, book, self.settings.job, alerts.external_url)
        # First the file: what a receiver hears of is known after a crash, too.
        self._save(book, {one.name: [*one.waiting(), *messages] for one in self.deliveries})
        for delivery in self.deliveries:
            delivery.put(messages)
        self.metrics.looked(book, ((one.name, len(one.waiting())) for one in self.deliveries), now_ms)
        for change in changes[:_MOST_LINES]:
            log.info("%s %s: %s", change.status, change.key[0], change.watched.annotations.get("summary", ""))
        if len(changes) > _MOST_LINES:
            log.info("and %d more alerts at the same time", len(changes) - _MOST_LINES)

    def run(self, wait: Callable[[float], bool], now: Callable[[], int] = wall_ms) -> None:
        """Look until `wait`, which rests some seconds, returns True."""
        for delivery in self.deliveries:
            delivery.start()
        try:
            self.step(now())
            while not wait(self.settings.alerts.look_every_ms / 1000):
                self.step(now())
        finally:
            for delivery in self.deliveries:
                delivery.close()
            self._save(self.state.book, {one.name: one.waiting() for one in self.deliveries})

    def _save(self, book: Book, undelivered: Mapping[str, Sequence[Message]]) -> None:
        """Write the state if it has changed; what could not be written is written at the next look."""
        self.state = AlertsState(book, undelivered)
        if self.state == self._saved:
            return
        path = state_path(self.settings)
        try:
            _replace(path, self.state.text())
        except OSError as exc:
            self.metrics.unsaved.inc()
            log.warning("%s cannot be written (%s): a crash would repeat or lose alerts", path, exc.strerror)
        else:
            self._saved = self.state


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
        log.warning("receiver %s was removed: %d messages for it are dropped", name, count)
    left, counts = state.undelivered, metrics.of_receiver
    return [Delivery(one, left.get(one.name, ()), settings, counts(one.name), steady_seconds) for one in receivers]


@contextmanager
def own_state(path: Path) -> Iterator[AlertsState]:
    """The state file, for this process alone while the block runs. Raises `Conflict` if another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f"{path.name}.lock")
    try:
        with ProcessLock(lock):
            yield read_state(path)
    except LockHeld as exc:
        msg = f"process {exc.holder} already sends alerts; it holds 'alerts.state_file' {path}"
        raise Conflict(msg, "stop that process, or name another file") from exc


# The whole program, and the test of receivers.

TEST_ALERT: Final = "KquotaTest"


def run_alerts(settings: Settings, signs: JobSigns, registry: CollectorRegistry, wait: Callable[[float], bool]) -> None:
    """Send alerts to the receivers of the settings until `wait`, which rests some seconds, returns True.

    Raises:
        UsageError: No receiver is set, or one cannot be used.
        Conflict: Another process sends the same alerts.
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


def try_receivers(settings: Settings, now_ms: int) -> Iterator[tuple[Receiver, Answer, int]]:
    """Send one test alert to each receiver, once; gives its answer, and how long that took in ms.

    Raises `UsageError` as `run_alerts`.
    """
    labels = {"alertname": TEST_ALERT, "severity": "info"}
    annotations = {"summary": "a test of kquota's alerts", "action": "no action is needed"}
    key = (TEST_ALERT, str(now_ms))
    watched = Watched(now_ms, now_ms, None, labels, annotations)
    change, external_url = Change("firing", key, watched), settings.alerts.external_url
    (message,) = messages_of([change], {key: watched}, settings.job, external_url)
    for receiver in receivers_of(settings):
        began = time.monotonic()
        try:
            answer = receiver.send(message)
        finally:
            receiver.close()
        yield receiver, answer, round((time.monotonic() - began) * 1000)
