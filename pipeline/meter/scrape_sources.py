"""What is asked for quota sensors: the exporter of each broker, which answers with its page as it is now."""

import http.client
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from pipeline.clock import Clock, Moment
from pipeline.errors import UsageError

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
