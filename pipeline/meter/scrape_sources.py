"""What is asked for quota sensors: the exporter of a broker, or a Prometheus that scrapes the exporters of all brokers.

An exporter answers with the page of one broker, as it is now. A Prometheus is asked for all samples that it has taken
since the last answer, with one range selector, so each has the time at which it was scraped. The samples of one broker
and instant are a page again: the same lines, and the same reader (`pipeline.meter.scrapes`).
"""

import http.client
import json
import re
import socket
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from pipeline.clock import Clock, Moment
from pipeline.errors import UsageError
from pipeline.meter.scrapes import OF_JMX_EXPORTER, NameMap

DEADLINE_MS: Final = 10_000
MAX_PAGE_BYTES: Final = 32 * 1024 * 1024

LONGEST_RANGE_MS: Final = 60_000
"""A Prometheus is asked for no older samples."""

_SHORTEST_RANGE_MS: Final = 15_000
_READ_BYTES: Final = 256 * 1024
_TARGET: Final = re.compile(r"(?:([0-9]+)=)?(https?://\S+)")
_LABEL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_LABEL_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


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


# Sources: what is asked, and the pages in its answer.


class Shown(NamedTuple):
    """The page of a broker, and when its rates were taken."""

    broker_id: str
    page: bytes
    at: Moment


class Answer(NamedTuple):
    """What a source has answered: pages in the order of their times, and why something belongs to no broker, or ""."""

    pages: Sequence[Shown]
    left_out: str = ""


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


def _by_host(brokers: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for broker in brokers:
        found.setdefault(str(broker["host"]).lower(), []).append(str(broker["broker_id"]))
    return found


@dataclass(frozen=True)
class ExporterSource:
    """The exporter of one broker."""

    broker_id: str
    url: str

    @property
    def broker_ids(self) -> Sequence[str]:
        """The brokers whose pages it may have."""
        return [self.broker_id]

    def address(self, _now_ms: int, _seen_ms: Sequence[int]) -> str:
        """What to request now."""
        return self.url

    def read(self, body: bytes, at: Moment) -> Answer:
        """The pages in an answer. May be called on any thread."""
        return Answer([Shown(self.broker_id, body, at)])


def with_brokers(targets: Sequence[Address], brokers: Iterable[Mapping[str, Any]]) -> list[ExporterSource]:
    """The exporter of each target; its broker is the one that is given, or the only one on the same host.

    Args:
        brokers: Those of the cluster, with `broker_id` and `host`.

    Raises:
        UsageError: No broker, or several, have the host of a target, or two targets are one broker.
    """
    by_host = _by_host(brokers)
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


# A Prometheus.


class PrometheusSource:
    """A Prometheus that scrapes the exporters of all brokers of a cluster.

    Args:
        url: Its address. What is behind `?` are labels and values that the series must have.

    Raises:
        UsageError: It is not the address of a Prometheus.
    """

    def __init__(self, url: str, names: NameMap, brokers: Sequence[Mapping[str, Any]]) -> None:
        self.url = url.strip()
        self.broker_ids = [str(broker["broker_id"]) for broker in brokers]
        self._by_host = _by_host(brokers)
        self._names = names
        self._address = urlsplit(self.url)
        match, labels = _TARGET.fullmatch(self.url), dict(parse_qsl(self._address.query, keep_blank_values=True))
        if not match or match[1] or not self._address.hostname or not all(map(_LABEL_NAME.fullmatch, labels)):
            message = f"query {url!r} is not the address of a Prometheus"
            raise UsageError(
                message, "write http://HOST:PORT, or http://HOST:PORT?LABEL=VALUE for the series of one cluster"
            )
        series = "|".join((*names.series, OF_JMX_EXPORTER)).translate(_LABEL_ESCAPES)
        matchers = [f'__name__=~"(?i:{series})"']
        matchers += [f'{label}="{value.translate(_LABEL_ESCAPES)}"' for label, value in labels.items()]
        self._selector = f"{{{','.join(matchers)}}}"

    def address(self, now_ms: int, seen_ms: Sequence[int]) -> str:
        """What to request now; `seen_ms` are the times of the newest page of each broker that has one lately."""
        # Its clock may be another one. What was seen already is not charged again.
        range_ms = now_ms - min(seen_ms, default=0) + 1_000
        range_ms = min(max(range_ms, _SHORTEST_RANGE_MS), LONGEST_RANGE_MS)
        query = urlencode({"query": f"{self._selector}[{range_ms}ms]"})
        return self._address._replace(path=f"{self._address.path.rstrip('/')}/api/v1/query", query=query).geturl()

    def read(self, body: bytes, _at: Moment) -> Answer:
        """The pages in an answer; `ScrapeFailed` if it is none of a Prometheus. May be called on any thread."""
        try:
            answer = json.loads(body)
            if answer["data"]["resultType"] != "matrix":
                raise ValueError(answer["data"]["resultType"])
            lines, left_out = self._lines(answer["data"]["result"])
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:
            message = "it did not answer as a Prometheus does"
            raise ScrapeFailed(message) from exc
        pages = [
            Shown(broker_id, "".join(lines[broker_id, at_ms]).encode(), Moment(at_ms, at_ms))
            for broker_id, at_ms in sorted(lines, key=lambda key: key[1])
        ]
        return Answer(pages, left_out)

    def _lines(self, result: Sequence[Mapping[str, Any]]) -> tuple[dict[tuple[str, int], list[str]], str]:
        """The lines of the page of each broker and instant; and why some series are of no broker."""
        lines: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        of_jmx_exporter: set[tuple[str, int]] = set()
        strays: list[str] = []
        for series in result:
            labels = series["metric"]
            label = next((one for one in labels if self._names.labels.get(one.lower()) == "broker_id"), "instance")
            value = labels.get(label, "")
            broker_id = self._broker_of(label, value)
            if labels["__name__"] == OF_JMX_EXPORTER:  # also of other programs, on the brokers' hosts and elsewhere
                of_jmx_exporter |= {(str(broker_id), round(at_seconds * 1000)) for at_seconds, _ in series["values"]}
                continue
            if broker_id is None:
                strays.append(f"{label}={value!r}")
                continue
            known = ",".join(
                f'{name}="{text.translate(_LABEL_ESCAPES)}"'
                for name, text in labels.items()
                if name.lower() in self._names.labels
            )
            text = f"{labels['__name__']}{{{known}}}"
            for at_seconds, rate in series["values"]:
                lines[broker_id, round(at_seconds * 1000)].append(f"{text} {rate}\n")
        for page in of_jmx_exporter & lines.keys():
            lines[page].append(f"{OF_JMX_EXPORTER} 1\n")
        fix = "Fix: --map LABEL=broker_id names the label with the broker-id, ?LABEL=VALUE the series of this cluster"
        return lines, f"series of no broker: {len(strays)}, the first has {strays[0]}. {fix}" if strays else ""

    def _broker_of(self, label: str, value: str) -> str | None:
        if label != "instance":
            return value if value in self.broker_ids else None
        host, _, port = value.rpartition(":")
        of_host = self._by_host.get((host if port.isdecimal() else value).strip("[]").lower(), [])
        return of_host[0] if len(of_host) == 1 else None


Source = ExporterSource | PrometheusSource
"""What is asked."""
