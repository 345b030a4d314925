"""The meter that scrapes: asks every broker's exporter for its quota sensors, and stores their usage as events.

Scrapes run side by side, each on a thread of its own, with a deadline and a largest size. What a target has not
answered is not known: nothing is charged for it, and one line is logged. Events are stored in transactions, so that one
whose outcome is not known is neither lost nor stored twice.
"""

import http.client
import logging
import queue
import random
import re
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from pipeline.clock import Clock, Moment
from pipeline.command_line import command_text
from pipeline.errors import UsageError
from pipeline.meter.scraped_rates import ScrapedUsage
from pipeline.meter.scrapes import FETCHED, PRODUCED, REQUEST, NameMap, Page, SensorTable
from pipeline.meter.usage_messages import Message, UsageCodec, messages_of
from pipeline.meter.usage_topic import NO_PLACE, UsagePublisher
from schemas.usage import LARGEST_MEASURE

logger = logging.getLogger(__name__)

INTERVAL_MS: Final = 2_000
LONGEST_INTERVAL_MS: Final = 5_000
"""From one scrape of a target to the next: a tenth of the time at most, within these."""

STORE_EVERY_MS: Final = 1_000

DEADLINE_MS: Final = 10_000
MAX_PAGE_BYTES: Final = 32 * 1024 * 1024

FLUSH_WITHIN_MS: Final = 10_000

_READ_BYTES: Final = 256 * 1024
_TARGET: Final = re.compile(r"(?:([0-9]+)=)?(https?://\S+)")
_FORGET_ABOVE: Final = 1_000
_STEP_SECONDS: Final = 0.05


class Address(NamedTuple):
    """A target: the broker, if it is given, and the address of its metrics."""

    broker_id: str | None
    url: str


def addresses(given: Iterable[str]) -> list[Address]:
    """The targets of the command line.

    Args:
        given: `URL` or `BROKER_ID=URL`, several of them separated by commas.

    Raises:
        UsageError: One is neither, or is there twice, or two are one broker.
    """
    found: list[Address] = []
    for text in (part.strip() for one in given for part in one.split(",")):
        match = _TARGET.fullmatch(text)
        if match is None or not urlsplit(match[2]).hostname:
            message = f"target {text!r} is not an address of metrics"
            raise UsageError(message, "write http://HOST:PORT/metrics, or BROKER_ID=http://HOST:PORT/metrics")
        found.append(Address(match[1], match[2]))
    for what, values in (("address", [one.url for one in found]), ("broker", [one.broker_id for one in found])):
        twice = next((value for value in values if value is not None and values.count(value) > 1), None)
        if twice is not None:
            message = f"two targets have the same {what}: {twice}"
            raise UsageError(message, "give each broker once, or its usage would be charged twice")
    return found


def with_brokers(targets: Sequence[Address], brokers: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    """The broker-id and the address of each target: as given, or that of the one broker on the same host.

    Args:
        brokers: Those of the cluster, with `broker_id` and `host`.

    Raises:
        UsageError: No broker, or several, have the host of a target, or two targets are one broker.
    """
    by_host: dict[str, list[str]] = {}
    for broker in brokers:
        by_host.setdefault(str(broker["host"]).lower(), []).append(str(broker["broker_id"]))
    found: list[tuple[str, str]] = []
    for broker_id, url in targets:
        host = str(urlsplit(url).hostname)
        of_host = by_host.get(host, [])
        if broker_id is None and len(of_host) != 1:
            message = f"which broker {url} shows is not known: {len(of_host)} brokers have the host {host}"
            raise UsageError(message, f"write BROKER_ID={url}")
        found.append((broker_id or of_host[0], url))
        other = next((other for known, other in found[:-1] if known == found[-1][0]), None)
        if other is not None:
            message = f"two targets are broker {found[-1][0]}: {other}, {url}"
            raise UsageError(message, "give each broker once, or its usage would be charged twice")
    return found


# One scrape over HTTP.


class ScrapeFailed(Exception):
    """A target has not answered as a metrics page should; the text says what it did."""


class Scrape:
    """One request for a page. `run` on one thread; `abort` from another."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = urlsplit(url)
        self._clock = clock
        self._connection: http.client.HTTPConnection | None = None
        self.began = clock.now()

    def run(self) -> tuple[bytes, Moment, int]:
        """The page, when its rates were taken, and how many ms the scrape took.

        Raises:
            ScrapeFailed: There is no page.
        """
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        connection = self._connection = kind(str(self._url.hostname), self._url.port, timeout=DEADLINE_MS / 1000)
        try:
            path = f"{self._url.path or '/metrics'}{'?' if self._url.query else ''}{self._url.query}"
            connection.request("GET", path, headers={"Accept": "text/plain;version=0.0.4", "Connection": "close"})
            response = connection.getresponse()
            answered = self._clock.now()
            if response.status != http.client.OK:
                message = f"it answered with status {response.status}"
                raise ScrapeFailed(message)
            page = self._body(response)
        except (OSError, http.client.HTTPException) as exc:
            late = self._ms() >= DEADLINE_MS
            message = f"no answer within {DEADLINE_MS // 1000} s" if late else f"{type(exc).__name__}: {exc}"
            raise ScrapeFailed(" ".join(message.split())[:200].rstrip(": ")) from exc
        finally:
            connection.close()
        # An exporter reads all beans before it sends the first byte.
        half_ms = (answered.steady_ms - self.began.steady_ms) // 2
        return page, Moment(answered.wall_ms - half_ms, answered.steady_ms - half_ms), self._ms()

    def abort(self) -> None:
        """End it: it has taken too long."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        parts: list[bytes] = []
        size_bytes = 0
        while part := response.read1(_READ_BYTES):
            size_bytes += len(part)
            if size_bytes > MAX_PAGE_BYTES:
                message = (
                    f"its page has more than {MAX_PAGE_BYTES // 1024**2} MiB: let it show kafka.server:type=… only"
                )
                raise ScrapeFailed(message)
            if self._ms() >= DEADLINE_MS:
                raise TimeoutError
            parts.append(part)
        if response.length:  # the connection has ended before the page has
            message = "its page was cut off"
            raise ScrapeFailed(message)
        page = b"".join(parts)
        if page.lstrip()[:1] == b"<":
            message = "it answered HTML"
            raise ScrapeFailed(message)
        return page

    def _ms(self) -> int:
        return self._clock.now().steady_ms - self.began.steady_ms


_Answer = tuple[bytes, Moment, int] | ScrapeFailed


# The brokers, and what is known of each.


@dataclass(slots=True)
class TargetCounts:
    """What happened to a target.

    Attributes:
        failed: Scrapes without a page.
        refused: Lines that could not be used.
        sensors: Those of the last page.
    """

    scrapes: int = 0
    failed: int = 0
    refused: int = 0
    sensors: int = 0


@dataclass(slots=True)
class Target:
    """One broker."""

    broker_id: str
    url: str
    sensors: SensorTable
    usage: ScrapedUsage = field(default_factory=ScrapedUsage)
    counts: TargetCounts = field(default_factory=TargetCounts)
    due_ms: int = 0
    scrape: Scrape | None = None
    page: Page | None = None
    seen: Moment | None = None
    is_charged: bool = True
    trouble: str = ""
    refused: str = ""

    @property
    def name(self) -> str:
        """For messages."""
        return f"broker {self.broker_id} at {self.url}"

    def is_of_the_broker_of(self, other: "Target") -> bool:
        """Whether both pages are of one process, or have the very same rates."""
        if self.page is None or other.page is None:
            return False
        if self.page.identity is not None and other.page.identity is not None:
            return self.page.identity == other.page.identity
        return self.page.digest is not None and self.page.digest == other.page.digest

    def observe(self, page: Page, at: Moment) -> None:
        """Charge what the page shows, and forget the sensors that are long gone."""
        self.usage.grow(len(self.sensors))
        self.usage.observe(page.rates, at.steady_ms)
        self.seen, self.is_charged = at, False
        if len(self.sensors) > _FORGET_ABOVE + 2 * page.shown:
            kept = ~self.usage.is_settled
            self.sensors.keep(kept)
            self.usage.keep(kept)


def usage_of(target: Target) -> pa.Table | None:
    """The usage of a target since the last time, a row for each client and second, as of `messages_of`; None: none."""
    if target.seen is None or target.is_charged:
        return None
    target.is_charged = True
    ends_ms, usage = target.usage.take(target.seen.wall_ms)
    names, places = target.sensors.client_names, target.sensors.places[: usage.shape[1]]
    amounts = np.zeros((len(ends_ms), 3, names.num_rows), np.int64)
    amounts[:, places[:, 0], places[:, 1]] = np.minimum(usage, LARGEST_MEASURE)
    seconds, clients = np.nonzero(amounts.any(axis=1))
    if not len(seconds):
        return None
    rows = names.take(pa.array(clients)).append_column("event_time_ms", pa.array(ends_ms[seconds]))
    for measure, name in ((PRODUCED, "produced_bytes"), (FETCHED, "fetched_bytes"), (REQUEST, "io_time_ns")):
        used = amounts[seconds, measure, clients]
        rows = rows.append_column(name, pa.array(used, mask=used == 0))
    return rows


class ScrapeMeter:
    """Scrapes and stores. One thread, and one for each scrape that is under way.

    Args:
        targets: Broker-id and address of each.
        wait: Waits some seconds; True = stop.
        seed: Of the times between scrapes, which are no multiple of anything a client does.
    """

    def __init__(
        self,
        targets: Iterable[tuple[str, str]],
        names: NameMap,
        publisher: UsagePublisher,
        codec: UsageCodec,
        clock: Clock,
        wait: Callable[[float], bool],
        seed: int | None = None,
    ) -> None:
        self.targets = [Target(broker_id, url, SensorTable(broker_id, names)) for broker_id, url in targets]
        self._publisher = publisher
        self._codec = codec
        self._messages: list[Message] = []
        self._events = 0
        self._clock = clock
        self._wait = wait
        self._random = random.Random(seed)  # noqa: S311 - times, no secrets
        self._answers: queue.SimpleQueue[tuple[Target, Scrape, _Answer]] = queue.SimpleQueue()
        self._is_tried = False
        self._store_due_ms = 0

    def run(self) -> bool:
        """Run until the wait ends, then store what is charged. What a window still holds is not.

        Returns:
            Whether all events were stored within `FLUSH_WITHIN_MS` after that.

        Raises:
            Conflict: A second meter has taken over.
        """
        try:
            while not self._wait(_STEP_SECONDS):
                self.step()
            give_up_ms = self._now_ms() + FLUSH_WITHIN_MS
            while not self._store() and self._now_ms() < give_up_ms:
                self._wait(_STEP_SECONDS)
        finally:
            self.close()
        return not self._is_tried

    def close(self) -> None:
        """End the scrapes that are under way, and close the publisher."""
        for target in self.targets:
            if target.scrape is not None:
                target.scrape.abort()
        self._publisher.close()

    def step(self) -> None:
        """Begin the scrapes that are due, charge what was answered, and store it."""
        now_ms = self._now_ms()
        for target in self.targets:
            if target.scrape is None and now_ms >= target.due_ms:
                self._begin(target)
            elif target.scrape is not None and now_ms - target.scrape.began.steady_ms > DEADLINE_MS:
                target.scrape.abort()
                self._tell(target, f"no answer within {DEADLINE_MS // 1000} s")
        while not self._answers.empty():
            self._answered(*self._answers.get())
        if now_ms >= self._store_due_ms:
            self._store_due_ms = now_ms + STORE_EVERY_MS
            self._store()

    @property
    def unstored_events(self) -> int:
        """Events that are not known to be stored."""
        return self._events

    def _begin(self, target: Target) -> None:
        scrape = target.scrape = Scrape(target.url, self._clock)

        def run() -> None:
            try:
                answer: _Answer = scrape.run()
            except ScrapeFailed as exc:
                answer = exc
            except Exception as exc:  # whatever one target does, the others are scraped
                answer = ScrapeFailed(f"{type(exc).__name__}: {exc}")
            self._answers.put((target, scrape, answer))

        threading.Thread(target=run, name=f"scrape-{target.broker_id}", daemon=True).start()

    def _answered(self, target: Target, scrape: Scrape, answer: _Answer) -> None:
        target.scrape = None
        target.counts.scrapes += 1
        took_ms = self._now_ms() - scrape.began.steady_ms if isinstance(answer, ScrapeFailed) else answer[2]
        between_ms = min(max(INTERVAL_MS, 10 * took_ms), LONGEST_INTERVAL_MS)
        target.due_ms = scrape.began.steady_ms + round(between_ms * self._random.uniform(0.75, 1.25))
        if isinstance(answer, ScrapeFailed):
            target.counts.failed += 1
            self._tell(target, str(answer))
            return
        page = target.page = target.sensors.read(answer[0])
        target.counts.sensors = page.shown
        target.counts.refused += page.refused
        before = self.targets[: self.targets.index(target)]
        twin = next((one for one in before if not one.trouble and target.is_of_the_broker_of(one)), None)
        if twin is not None:
            self._tell(target, f"it shows the broker of {twin.url}, whose usage would be charged twice")
            return
        status = command_text("meter", "status", about="cluster")
        self._tell(target, "" if page.shown else f"it shows no quota sensors ({status})")
        self._tell_refused(target, page)
        target.observe(page, answer[1])

    def _tell(self, target: Target, trouble: str) -> None:
        """Log what is wrong when it begins, and that it has ended."""
        if trouble and not target.trouble:
            logger.warning("%s is not metered: %s", target.name, trouble)
        elif target.trouble and not trouble:
            logger.info("%s is metered again; of the time between at most one window is charged", target.name)
        target.trouble = trouble

    def _tell_refused(self, target: Target, page: Page) -> None:
        if page.reason and not target.refused:
            logger.warning(
                "%s: lines that are not charged: %d, the first is %s", target.name, page.refused, page.reason
            )
        target.refused = page.reason

    def _store(self) -> bool:
        """Store what is charged; True if nothing is left. A batch that was tried stays as it is until it is stored."""
        if not self._is_tried:
            used = [rows for target in self.targets if (rows := usage_of(target)) is not None]
            if not used:
                return True
            usage = pa.concat_tables(used)
            self._messages = messages_of(usage, self._publisher.partition_count, self._codec)
            self._events = usage.num_rows
        self._is_tried = True
        if not self._publisher.publish(self._messages, self._events, NO_PLACE, self._now_ms()):
            return False
        self._is_tried, self._messages, self._events = False, [], 0
        return True

    def _now_ms(self) -> int:
        return self._clock.now().steady_ms


def scrape_metrics(meter: ScrapeMeter, publisher: UsagePublisher) -> Iterable[Metric]:
    """The counts of a meter, now; for any thread."""
    scrapes = CounterMetricFamily("kquota_meter_scrapes", "Scrapes of a broker.", labels=["broker_id", "outcome"])
    refused = CounterMetricFamily(
        "kquota_meter_refused_lines", "Lines of a broker's page that were not charged.", labels=["broker_id"]
    )
    sensors = GaugeMetricFamily("kquota_meter_sensors", "Quota sensors that the broker shows.", labels=["broker_id"])
    for target in meter.targets:
        counts, broker_id = target.counts, target.broker_id
        scrapes.add_metric([broker_id, "failed"], counts.failed)
        scrapes.add_metric([broker_id, "done"], counts.scrapes - counts.failed)
        refused.add_metric([broker_id], counts.refused)
        sensors.add_metric([broker_id], counts.sensors)
    yield from (scrapes, refused, sensors)
    for name, documentation, count in (
        ("stored_events", "Events stored on the usage topic.", publisher.counts.events),
        ("stored_messages", "Messages stored on the usage topic.", publisher.counts.messages),
        ("failed_transactions", "Transactions that were retried.", publisher.counts.failures),
    ):
        counter = CounterMetricFamily(f"kquota_meter_{name}", documentation, labels=["broker_id"])
        counter.add_metric([""], count)
        yield counter
