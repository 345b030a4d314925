"""A receiver over HTTP: one POST for each message, signed if there is a key."""

import http.client
import urllib.request
from collections.abc import Callable
from importlib.metadata import version
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from pipeline.alerts.payload import Message, body_of
from pipeline.alerts.receiver import Answer
from pipeline.alerts.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER, signature
from pipeline.clock import wall_ms
from pipeline.errors import first_line, printable

_MESSAGE_IS_WRONG: Final = frozenset({400, 405, 406, 410, 411, 413, 414, 415, 422, 431})
"""These say that the same request would be refused again. All others may pass: also a wrong token, which is mended."""


class Webhook:
    """Sends to one URL. Redirects are not followed: a message goes where the settings say, and nowhere else.

    Args:
        name: As in the settings.
        url: http or https; it may hold a secret, so no part but scheme and host is ever told.
        signing_key: See `signature`; None = not signed.
        timeout_ms: How long connecting, and each pause of the answer, may take.
        now_ms: The wall clock, for the timestamp.
    """

    def __init__(
        self,
        name: str,
        url: str,
        signing_key: bytes | None,
        timeout_ms: int,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.name = name
        self._url = url
        self._signing_key = signing_key
        self._timeout_seconds = timeout_ms / 1000
        self._now_ms = now_ms
        self._opener = _opener()

    @property
    def place(self) -> str:
        """Scheme, host and port of the URL."""
        parts = urlsplit(self._url)
        return printable(f"{parts.scheme}://{parts.netloc}")

    def send(self, message: Message) -> Answer:
        """See `Receiver.send`. Each try has a timestamp, and so a signature, of its own."""
        body = body_of(message, self.name)
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked with the settings
            self._url, body, self._headers(body), method="POST"
        )
        try:
            with self._opener.open(request, timeout=self._timeout_seconds) as answer:
                return Answer("taken", str(answer.status))
        except HTTPError as exc:
            with exc:
                return _refusal(exc.code, exc.reason)
        except URLError as exc:
            cause = exc.reason
            return Answer("later", first_line(cause) if isinstance(cause, BaseException) else printable(str(cause)))
        except (OSError, http.client.HTTPException) as exc:
            return Answer("later", first_line(exc))

    def close(self) -> None:
        """Nothing is kept open between two messages."""

    def _headers(self, body: bytes) -> dict[str, str]:
        timestamp = str(self._now_ms() // 1000)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"kquota/{version('kafka-quota-pipeline')}",
            TIMESTAMP_HEADER: timestamp,
        }
        if self._signing_key is not None:
            headers[SIGNATURE_HEADER] = signature(self._signing_key, timestamp, body)
        return headers


def _refusal(status: int, reason: str) -> Answer:
    told = printable(f"{status} {reason}"[:200]).strip()
    if 300 <= status < 400:
        return Answer("later", f"{told}: a redirect, which is not followed; give the address that it leads to")
    return Answer("never" if status in _MESSAGE_IS_WRONG else "later", told)


def _opener() -> urllib.request.OpenerDirector:
    """Speaks HTTP and HTTPS, by way of the proxy of the environment if it names one; every other status is an error."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
    ):
        opener.add_handler(handler)
    return opener
