"""OAUTHBEARER: tokens by the client-credentials grant, or from a file, as Kafka's own Java clients get them."""

import base64
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

from kafka.net.sasl.oauth import AbstractTokenProvider

from pipeline.cluster.errors import TokenRefused

_RENEW_AFTER: Final = 0.8  # of a token's life, as sasl.login.refresh.window.factor
_UNKNOWN_LIFE_SECONDS: Final = 60.0
_TIMEOUT_SECONDS: Final = 10.0
_LARGEST_ANSWER_BYTES: Final = 1 << 20
_WORDS_OF_AN_ERROR: Final = ("error", "error_description")


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Where tokens come from.

    Attributes:
        url: http(s):// of the token endpoint, or file:// of a file that holds a token.
        client_id: Of the grant; not used for a file.
        client_secret: As above.
        scope: As above; "" = none.
        extensions: SASL extensions sent with the token.
        tls: For an endpoint whose certificate the system does not trust; None = what the system trusts.
    """

    url: str
    client_id: str = ""
    client_secret: str = field(repr=False, default="")
    scope: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """A redirected request would carry the client's secret to another server."""


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc] # kafka-python has no types
    """Fetches a token when one is needed and uses it for four fifths of its life. Thread-safe.

    Args:
        source: Where from.
        now_seconds: Returns epoch seconds; tokens expire by this clock.
    """

    def __init__(self, source: TokenSource, now_seconds: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._source = source
        self._opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=source.tls))
        self._now_seconds = now_seconds
        self._lock = Lock()
        self._token = ""
        self._renew_at = 0.0

    def token(self) -> str:
        """A token that has not expired.

        Raises:
            TokenRefused: the endpoint does not answer, or not with a token.
        """
        with self._lock:
            now = self._now_seconds()
            if now >= self._renew_at:
                self._token, life_seconds = self._fetch(now)
                self._renew_at = now + _RENEW_AFTER * life_seconds
            return self._token

    def subject(self) -> str:
        """The subject of the token: its `sub`, which brokers use as the user by default.

        Raises:
            TokenRefused: as of `token`.
        """
        return str(claims_of(self.token()).get("sub", self._source.client_id))

    def extensions(self) -> dict[str, str]:
        """The SASL extensions."""
        return dict(self._source.extensions)

    def _fetch(self, now: float) -> tuple[str, float]:
        if self._source.url.startswith("file:"):
            token = _token_in_file(self._source.url)
            return token, _life_seconds(token, None, now)
        answer = self._request_token()
        given = answer.get("access_token")
        if not isinstance(given, str) or not given:
            raise TokenRefused(self._source.url, "answers without 'access_token'")
        return given, _life_seconds(given, answer.get("expires_in"), now)

    def _request_token(self) -> dict[str, Any]:
        source = self._source
        form = {"grant_type": "client_credentials"} | ({"scope": source.scope} if source.scope else {})
        basic = base64.b64encode(f"{source.client_id}:{source.client_secret}".encode()).decode("ascii")
        request = urllib.request.Request(  # noqa: S310 - client_properties lets http, https and file alone through
            source.url,
            data=urllib.parse.urlencode(form).encode(),
            headers={"Authorization": f"Basic {basic}", "Accept": "application/json"},
        )
        try:
            with self._opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
                answer = json.loads(response.read(_LARGEST_ANSWER_BYTES))
        except urllib.error.HTTPError as exc:
            raise TokenRefused(source.url, f"answers {exc.code} {exc.reason}{_error_text(exc)}") from exc
        except urllib.error.URLError as exc:
            raise TokenRefused(source.url, f"does not answer: {exc.reason}") from exc
        except (OSError, ValueError) as exc:
            raise TokenRefused(source.url, f"does not answer with JSON ({type(exc).__name__})") from exc
        return answer if isinstance(answer, dict) else {}


def _token_in_file(url: str) -> str:
    try:
        return Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path)).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise TokenRefused(url, f"can not be read ({type(exc).__name__})") from exc


def _error_text(error: urllib.error.HTTPError) -> str:
    """The reason of a refusal as RFC 6749 defines it; "" if the answer has none."""
    try:
        answer = json.loads(error.read(_LARGEST_ANSWER_BYTES))
        words = [str(answer[key]) for key in _WORDS_OF_AN_ERROR if key in answer]
    except (OSError, ValueError, TypeError):
        return ""
    return f" ({': '.join(words)})" if words else ""


def _life_seconds(token: str, expires_in: object, now: float) -> float:
    """From `exp` of a JWT, else from `expires_in` of the endpoint's answer."""
    expires_at = claims_of(token).get("exp")
    if isinstance(expires_at, int | float):
        return max(0.0, expires_at - now)
    return float(expires_in) if isinstance(expires_in, int | float) else _UNKNOWN_LIFE_SECONDS


def claims_of(token: str) -> dict[str, Any]:
    """The claims of a JWT, unverified; empty for any other token."""
    payload = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except ValueError:
        return {}
    return claims if isinstance(claims, dict) else {}
