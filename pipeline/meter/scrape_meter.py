"""The meter that scrapes: asks exporters for the quota sensors of brokers and stores usage as events.

Sources are asked in rounds, side by side, each on a thread of its own, with a deadline and a largest size. What a
source has not answered is not known: nothing is charged for it, and one line is logged. What a round has shown is
stored in one transaction, so that one whose outcome is not known is neither lost nor stored twice.
"""

import http.client
import logging
import queue
import random
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from pipeline.clock import Clock, Moment
from pipeline.command_line import command_text
from pipeline.errors import UsageError
from pipeline.meter.scrapes import Page, ScrapedUsage, SensorTable
from pipeline.meter.usage_topic import Message, UsagePublisher, Used, delivery_metrics, messages_of
from schemas.usage import LARGEST_MEASURE

# What is asked for quota sensors: the exporter of each broker, which answers with its page as it is now.

DEADLINE_MS: Final = 10_000
MAX_PAGE_BYTES: Final = 32 * 1024 * 1024

_READ_BYTES: Final = 256 * 1024
_TARGET: Final = re.compile(r"(?:([0-9]+)=)?(https?://\S+)")


# One request over HTTP.


class ScrapeFailed(Exception):
    """A source has not answered as it should; the text says what it did."""


class Scrape:
    """One request. `run` on one thread; `abort` from another."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = urlsplit(url)
        self._clock = clock
        self._connection: http.client.HTTPConnection | None = None
        self.began = clock.now()

    def run(self) -> tuple[bytes, Moment]:
        """The body of the answer, and when it was made; `ScrapeFailed` if there is none."""
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
            body = self._body(response)
        except (OSError, http.client.HTTPException) as exc:
            late = self._ms() >= DEADLINE_MS
            message = f"no answer within {DEADLINE_MS // 1000} s" if late else f"{type(exc).__name__}: {exc}"
            raise ScrapeFailed(" ".join(message.split())[:200].rstrip(": ")) from exc
        finally:
            connection.close()
        # An exporter reads all beans before it sends the first byte.
        half_ms = (answered.steady_ms - self.began.steady_ms) // 2
        return body, Moment(answered.wall_ms - half_ms, answered.steady_ms - half_ms)

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


# The exporters of brokers.


_ONCE: Final = "give each broker once, or its usage would be charged twice"


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
            raise UsageError(message, _ONCE)
    return found


class ExporterSource(NamedTuple):
    """The exporter of one broker."""

    broker_id: str
    url: str


def with_brokers(targets: Sequence[Address], brokers: Iterable[Mapping[str, Any]]) -> list[ExporterSource]:
    """The exporter of each target; its broker is the one that is given, or the only one on the same host.

    Args:
        brokers: Those of the cluster, with `broker_id` and `host`.

    Raises:
        UsageError: No broker, or several, have the host of a target, or two targets are one broker.
    """
    by_host: dict[str, list[str]] = {}
    for broker in brokers:
        by_host.setdefault(str(broker["host"]).lower(), []).append(str(broker["broker_id"]))
    found: list[ExporterSource] = []
    for broker_id, url in targets:
        host = str(urlsplit(url).hostname)
        of_host = by_host.get(host, [])
        if broker_id is None and len(of_host) != 1:
            message = f"which broker {url} shows is not known: {len(of_host)} brokers have the host {host}"
            raise UsageError(message, f"write BROKER_ID={url}")
        own = ExporterSource(broker_id or of_host[0], url)
        other = next((one for one in found if one.broker_id == own.broker_id), None)
        if other is not None:
            message = f"two targets are broker {own.broker_id}: {other.url}, {url}"
            second = next((one for ids in by_host.values() for one in ids if one != own.broker_id), None)
            fix = f"name the broker of each: --targets {own.broker_id}={other.url},{second}={url}"
            raise UsageError(message, fix if second else _ONCE)
        found.append(own)
    return found


logger = logging.getLogger(__name__)

ACCURACY: Final = "usage is up to 11 s late, sums are right to 3 %, those of bursts to 7 %"
"""What is said of usage from scrapes, everywhere alike."""

INTERVAL_MS: Final = 2_000
"""From one round to the next."""

LONGEST_INTERVAL_MS: Final = 5_000
"""A source that takes longer than a tenth of a round is asked less often, but about this often."""

STORE_EVERY_MS: Final = 1_000
"""A source that has not answered holds up the others of its round no longer than this."""

FLUSH_WITHIN_MS: Final = 10_000

_FORGET_ABOVE: Final = 1_000
_STEP_SECONDS: Final = 0.05


# The brokers, and what is known of each.


@dataclass(slots=True)
class TargetCounts:
    """All scrapes of a target, scrapes without a page, lines that could not be used, sensors of the last page."""

    scrapes: int = 0
    failed: int = 0
    refused: int = 0
    sensors: int = 0


@dataclass(slots=True)
class Target:
    """One broker.

    Attributes:
        trouble: Why it is not metered; "" if it is.
        unread: Why quota lines of its last page could not be read, or may be hidden; "" if all were read.
        is_sparse: Whether samples were further apart than the window.
        due_ms: When it is asked again.
        began_ms: When it was asked last.
        scrape: The request that is under way.
    """

    broker_id: str
    url: str
    sensors: SensorTable
    usage: ScrapedUsage = field(default_factory=ScrapedUsage)
    counts: TargetCounts = field(default_factory=TargetCounts)
    page: Page | None = None
    seen: Moment | None = None
    is_charged: bool = True
    trouble: str = ""
    unread: str = ""
    is_sparse: bool = False
    due_ms: int = 0
    began_ms: int = 0
    scrape: Scrape | None = None

    @property
    def name(self) -> str:
        """For messages."""
        return f"broker {self.broker_id} at {self.url}"

    def is_of_the_broker_of(self, other: "Target") -> bool:
        """Whether both pages are of one process, where they say when it was started."""
        own, others = (None if one.page is None else one.page.identity for one in (self, other))
        return own is not None and own == others

    def observe(self, page: Page, at: Moment) -> None:
        """Charge what the page shows, and forget the sensors that are long gone."""
        self.usage.grow(len(self.sensors))
        self.usage.observe(page.rates, at.steady_ms)
        self.seen, self.is_charged = at, False
        if len(self.sensors) > _FORGET_ABOVE + 2 * page.shown:
            kept = ~self.usage.is_settled
            self.sensors.keep(kept)
            self.usage.keep(kept)


def usage_of(target: Target) -> Iterator[Used]:
    """The usage of a target since the last time, of each client and second."""
    if target.seen is None or target.is_charged:
        return
    target.is_charged = True
    ends_ms, usage = target.usage.take(target.seen.wall_ms)
    clients, places = target.sensors.clients, target.sensors.places[: usage.shape[1]]
    amounts = np.zeros((len(ends_ms), 3, len(clients)), np.int64)
    amounts[:, places[:, 0], places[:, 1]] = np.minimum(usage, LARGEST_MEASURE)
    for second, client in np.argwhere(amounts.any(axis=1)).tolist():
        yield Used(clients[client], int(ends_ms[second]), amounts[second, :, client].tolist())


def _without_sensors(page: Page, unread: str) -> str:
    if page.refused:
        return f"none of its quota lines can be read ({page.refused}), the first is {unread}"
    return f"it shows no quota sensors ({unread or command_text('meter', 'status', about='cluster')})"


class ScrapeMeter:
    """Scrapes and stores. One thread, and one for each request that is under way.

    Args:
        sources: No two have a broker in common.
        wait: Waits some seconds; True = stop.
        seed: Of the times between rounds, which are no multiple of anything a client does.
    """

    def __init__(
        self,
        sources: Iterable[ExporterSource],
        publisher: UsagePublisher,
        clock: Clock,
        wait: Callable[[float], bool],
        seed: int | None = None,
    ) -> None:
        self.targets = [Target(*source, SensorTable(source.broker_id)) for source in sources]
        self._publisher = publisher
        self._messages: list[Message] = []
        self.unstored_events = 0
        """Events that are not known to be stored."""
        self._clock = clock
        self._wait = wait
        self._random = random.Random(seed)  # noqa: S311 - times, no secrets
        self._answers: queue.SimpleQueue[tuple[Target, tuple[bytes, Moment] | ScrapeFailed]] = queue.SimpleQueue()
        self._is_tried = False
        self._round_due_ms = 0
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
        """End the requests that are under way, and close the publisher."""
        for target in self.targets:
            if target.scrape is not None:
                target.scrape.abort()
        self._publisher.close()

    def step(self) -> None:
        """Begin the round that is due, charge what was answered, and store it."""
        now_ms = self._now_ms()
        for target in self.targets:
            if target.scrape is not None and now_ms - target.began_ms > DEADLINE_MS:
                target.scrape.abort()
                self._tell(target, f"no answer within {DEADLINE_MS // 1000} s")
        if now_ms >= self._round_due_ms:
            self._round_due_ms = now_ms + round(INTERVAL_MS * self._random.uniform(0.75, 1.25))
            self._store_due_ms = now_ms + STORE_EVERY_MS
            for target in self.targets:
                if target.scrape is None and now_ms >= target.due_ms:
                    self._begin(target, now_ms)
        while not self._answers.empty():
            self._answered(*self._answers.get())
        if now_ms >= self._store_due_ms or not self.is_asking:
            self._store_due_ms = now_ms + STORE_EVERY_MS
            self._store()

    @property
    def is_asking(self) -> bool:
        """Whether a request is under way."""
        return any(target.scrape is not None for target in self.targets)

    def _begin(self, target: Target, now_ms: int) -> None:
        target.began_ms = now_ms
        scrape = target.scrape = Scrape(target.url, self._clock)

        def run() -> None:
            try:
                answer: tuple[bytes, Moment] | ScrapeFailed = scrape.run()
            except ScrapeFailed as exc:
                answer = exc
            except Exception as exc:  # whatever one source does, the others are asked
                answer = ScrapeFailed(f"{type(exc).__name__}: {exc}")
            self._answers.put((target, answer))

        threading.Thread(target=run, name=f"scrape-{target.broker_id}", daemon=True).start()

    def _answered(self, target: Target, answer: tuple[bytes, Moment] | ScrapeFailed) -> None:
        target.scrape = None
        took_ms = self._now_ms() - target.began_ms
        # Half a round before, so that the mean is right: it is asked in the first round after that.
        target.due_ms = target.began_ms + min(10 * took_ms, LONGEST_INTERVAL_MS) - INTERVAL_MS // 2
        target.counts.scrapes += 1
        if isinstance(answer, ScrapeFailed):
            target.counts.failed += 1
            self._tell(target, str(answer))
        else:
            self._charge(target, *answer)

    def _charge(self, target: Target, text: bytes, at: Moment) -> None:
        apart_ms = at.steady_ms - target.seen.steady_ms if target.seen else 0
        if target.seen is not None and apart_ms <= 0:
            return
        page = target.page = target.sensors.read(text)
        was_unread, target.unread = target.unread, page.reason
        target.counts.sensors = page.shown
        target.counts.refused += page.refused
        before = self.targets[: self.targets.index(target)]
        twin = next((one for one in before if not one.trouble and target.is_of_the_broker_of(one)), None)
        if twin is not None:
            self._tell(target, f"it shows the broker of {twin.url}, whose usage would be charged twice")
            return
        was_away = bool(target.trouble)
        self._tell(target, "" if page.shown else _without_sensors(page, target.unread))
        if page.shown and page.reason and not was_unread:
            logger.warning(
                "%s: lines that are not charged: %d, the first is %s", target.name, page.refused, page.reason
            )
        if apart_ms > target.usage.window_ms and not (target.is_sparse or was_away):
            logger.warning(
                "%s: samples %d s apart, of which %d s are charged. Fix: scrape it every 5 s or less",
                target.name,
                apart_ms // 1000,
                target.usage.window_ms // 1000,
            )
        target.is_sparse = apart_ms > target.usage.window_ms and not was_away
        target.observe(page, at)

    def _tell(self, target: Target, trouble: str) -> None:
        """Log what is wrong when it begins, and that it has ended."""
        if trouble and not target.trouble:
            logger.warning("%s is not metered: %s", target.name, trouble)
        elif target.trouble and not trouble:
            text = "%s is metered again; of what was not scraped meanwhile at most one window is charged"
            logger.info(text, target.name)
        target.trouble = trouble

    def _store(self) -> bool:
        """Store what is charged; True if nothing is left. A batch that was tried stays as it is until it is stored."""
        if not self._is_tried:
            usage = [used for target in self.targets for used in usage_of(target)]
            if not usage:
                return True
            self._messages = messages_of(usage, self._publisher.partition_count)
            self.unstored_events = len(usage)
        self._is_tried = True
        if not self._publisher.publish(self._messages, self.unstored_events, self._now_ms()):
            return False
        self._is_tried, self._messages, self.unstored_events = False, [], 0
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
    yield GaugeMetricFamily(
        "kquota_meter_unstored_events", "Events that are not known to be stored.", value=meter.unstored_events
    )
    yield from delivery_metrics(publisher.counts)
