"""Signing in to a cluster: OAuth tokens and TLS, from the same client properties as Kafka's Java clients.

Tokens come by the client-credentials grant, or from a file.
"""

import base64
import json
import re
import ssl
import tempfile
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

from pipeline.errors import Unreachable
from pipeline.process import restart_in_children

_RENEW_AFTER: Final = 0.8  # of a token's life, as sasl.login.refresh.window.factor
_UNKNOWN_LIFE_SECONDS: Final = 60.0
_TIMEOUT_SECONDS: Final = 10.0
_LARGEST_ANSWER_BYTES: Final = 1 << 20
_WORDS_OF_AN_ERROR: Final = ("error", "error_description")


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Where tokens come from: the http(s):// URL of a token endpoint, or file:// of a file that holds a token.

    Attributes:
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


class TokenRefused(Unreachable):
    """There is no OAuth token to sign in with; the cause never holds a secret."""

    def __init__(self, url: str, cause: str) -> None:
        fix = "check sasl.oauthbearer.token.endpoint.url, clientId, clientSecret and scope of the client properties"
        super().__init__(f"no OAuth token from {url}: it {cause}", fix)


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc] # kafka-python has no types
    """Fetches a token when one is needed and uses it for four fifths of its life, in epoch seconds. Thread-safe."""

    def __init__(self, source: TokenSource, now_seconds: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._source = source
        self._opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=source.tls))
        self._now_seconds = now_seconds
        self._token = ""
        self._renew_at = 0.0
        self.restart()
        restart_in_children(self)

    def restart(self) -> None:
        """See `Restartable`: the lock may be held while the endpoint is asked."""
        self._lock = Lock()

    def token(self) -> str:
        """A token that has not expired; `TokenRefused` if the endpoint does not answer, or not with a token."""
        with self._lock:
            now = self._now_seconds()
            if now >= self._renew_at:
                self._token, life_seconds = self._fetch(now)
                self._renew_at = now + _RENEW_AFTER * life_seconds
            return self._token

    def subject(self) -> str:
        """The subject of the token: its `sub`, which brokers use as the user by default. Raises as `token`."""
        return str(claims_of(self.token()).get("sub", self._source.client_id))

    def extensions(self) -> dict[str, str]:
        """The SASL extensions."""
        return dict(self._source.extensions)

    def _fetch(self, now: float) -> tuple[str, float]:
        if self._source.url.startswith("file:"):
            path = urllib.parse.unquote(urllib.parse.urlsplit(self._source.url).path)
            try:
                token = Path(path).read_text("ascii").strip()
            except (OSError, UnicodeDecodeError) as exc:
                raise TokenRefused(self._source.url, f"cannot be read ({type(exc).__name__})") from exc
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


# The `ssl.*` entries of client properties, for Python's clients and for Java's.
#
# Certificates and keys are PEM, in files or in the properties themselves (Kafka's KIP-651). Java's own stores need a
# password-based format that neither Python nor kafka-python reads, so they are refused with the commands that convert.

VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_STORES: Final = {
    "truststore": ("ssl.truststore.location", "ssl.truststore.certificates", "ssl.ca.location"),
    "keystore": (
        "ssl.keystore.location", "ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.key.location",
        "ssl.certificate.location",
    ),
}  # fmt: skip
KEYS: Final = frozenset({
    *_STORES["truststore"], *_STORES["keystore"], "ssl.truststore.type", "ssl.keystore.type", "ssl.key.password",
    "ssl.endpoint.identification.algorithm", "ssl.enabled.protocols", "ssl.protocol",
})  # fmt: skip
"""The keys that are read: Java's, and librdkafka's for PEM files."""

_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
_LABELS: Final = ("CERTIFICATE", "TRUSTED CERTIFICATE", "PRIVATE KEY", "ENCRYPTED PRIVATE KEY")
_CONVERT: Final = {
    "truststore": "keytool -list -rfc -keystore {path} > {stem}.pem",
    "keystore": "keytool -importkeystore -srckeystore {path} -destkeystore {stem}.export.p12 -deststoretype PKCS12 "
    "&& openssl pkcs12 -in {stem}.export.p12 -nodes -out {stem}.pem",
}


class TlsMistakes(ValueError):
    """TLS entries that are wrong or not supported, with one text per mistake. They contain no secrets."""

    def __init__(self, mistakes: list[str]) -> None:
        self.mistakes = mistakes
        super().__init__("; ".join(mistakes))


@dataclass(frozen=True, slots=True)
class Tls:
    """What a client trusts, and who it is. All texts are PEM blocks.

    Attributes:
        chain: Its own certificate, then those of its issuers; "" = none.
        key: The private key, PKCS 8.
        key_password: Of the key; None if it is not encrypted.
        check_hostname: The broker's certificate must be for the name it is reached by.
        versions: Names of the TLS versions it may speak.
    """

    authorities: str
    chain: str
    key: str = field(repr=False)
    key_password: str | None = field(repr=False)
    check_hostname: bool
    versions: tuple[str, ...]

    def context(self) -> ssl.SSLContext:
        """For Python; `TlsMistakes` if certificates or key are damaged or do not fit, or its password is wrong."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = min(VERSIONS[name] for name in self.versions)
        context.maximum_version = max(VERSIONS[name] for name in self.versions)
        context.check_hostname = self.check_hostname
        try:
            if self.authorities:
                context.load_verify_locations(cadata=self.authorities)
            else:
                context.load_default_certs()
        except ssl.SSLError as exc:
            raise TlsMistakes([f"'ssl.truststore' does not hold certificates: {_reason(exc)}"]) from exc
        if self.chain:
            self._load_identity(context)
        return context

    def java_properties(self) -> dict[str, str]:
        """As properties for Java. Certificates are given as text, so no file is needed where the client runs."""
        properties = {"ssl.enabled.protocols": ",".join(self.versions)}
        if not self.check_hostname:
            properties["ssl.endpoint.identification.algorithm"] = ""
        if self.authorities:
            properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": self.authorities}
        if self.chain:
            properties |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": self.chain,
                "ssl.keystore.key": self.key,
            }
            if self.key_password is not None:
                properties["ssl.key.password"] = self.key_password
        return properties

    def _load_identity(self, context: ssl.SSLContext) -> None:
        # OpenSSL reads an identity only from a file. This one is readable by its owner only and deleted at once.
        with tempfile.NamedTemporaryFile("w", encoding="ascii", suffix=".pem") as file:
            file.write(f"{self.key}\n{self.chain}\n")
            file.flush()
            try:
                # Without a password OpenSSL would ask for one at the terminal.
                context.load_cert_chain(file.name, password=self.key_password or "")
            except ssl.SSLError as exc:
                unfit = "the key of 'ssl.keystore' does not fit its chain"
                what = "'ssl.key.password' does not open the key" if "ENCRYPTED" in self.key else unfit
                raise TlsMistakes([f"{what}: {_reason(exc)}"]) from exc


def read_tls(properties: Mapping[str, str]) -> Tls:
    """The TLS entries among resolved client properties; `TlsMistakes` names all that are wrong or not supported."""
    mistakes: list[str] = []
    trusted = _store("truststore", properties, mistakes)
    own = _store("keystore", properties, mistakes)
    chain = [block for kind, block in own if kind.endswith("CERTIFICATE")]
    keys = [block for kind, block in own if not kind.endswith("CERTIFICATE")]
    if not mistakes and bool(chain) != bool(keys):
        alone = "the certificate" if chain else "the key"
        mistakes.append(f"'ssl.keystore' holds {alone} alone, not a private key and its certificate")
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in {"", "none", "https"}:
        mistakes.append(f"'ssl.endpoint.identification.algorithm' is {algorithm!r}, not https or empty")
    versions = _versions(properties, mistakes)
    if mistakes:
        raise TlsMistakes(mistakes)
    return Tls(
        authorities="\n".join(block for kind, block in trusted if kind.endswith("CERTIFICATE")),
        chain="\n".join(chain),
        key="".join(keys),
        key_password=properties.get("ssl.key.password"),
        check_hostname=algorithm == "https",
        versions=versions,
    )


def _store(store: str, properties: Mapping[str, str], mistakes: list[str]) -> list[tuple[str, str]]:
    location = properties.get(f"ssl.{store}.location", "")
    kind = properties.get(f"ssl.{store}.type", "PEM")
    if kind.upper() != "PEM":
        mistakes.append(_not_pem(f"ssl.{store}.type", f" {kind!r}", store, location))
        return []
    found: list[tuple[str, str]] = []
    for key in _STORES[store]:
        value = properties.get(key, "")
        if not value:
            continue
        is_path = key.endswith("location")
        try:
            text = Path(value).read_bytes().decode("ascii", errors="replace") if is_path else value
        except OSError as exc:
            mistakes.append(f"'{key}' {value} cannot be read: {exc.strerror}")
            continue
        blocks = [(match[1], match[0]) for match in _BLOCK.finditer(text)]
        if not blocks:
            mistakes.append(_not_pem(key, f" {value}" if is_path else "", store, location))
        for label, _ in blocks:
            if label not in _LABELS:
                convert = "openssl pkcs8 -topk8 -nodes -in KEY.pem -out KEY.pk8.pem"
                mistakes.append(f"'{key}' holds {label!r}, not a PKCS 8 key ('BEGIN PRIVATE KEY'): {convert}")
        found += blocks
    return found


def _not_pem(key: str, got: str, store: str, location: str) -> str:
    path = Path(location or f"{store}.jks")
    convert = _CONVERT[store].format(path=path, stem=path.with_suffix(""))
    return f"'{key}'{got} is not PEM, and Java's own stores cannot be read here: {convert}"


def _versions(properties: Mapping[str, str], mistakes: list[str]) -> tuple[str, ...]:
    names = [name.strip() for name in properties.get("ssl.enabled.protocols", ",".join(VERSIONS)).split(",")]
    if not set(names) <= VERSIONS.keys():
        mistakes.append(f"'ssl.enabled.protocols' {', '.join(names)} are not some of {', '.join(VERSIONS)}")
    if properties.get("ssl.protocol", "TLS") not in {"TLS", *VERSIONS}:
        mistakes.append(f"'ssl.protocol' {properties['ssl.protocol']!r} is none of {', '.join(VERSIONS)}")
    return tuple(names)


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "text that OpenSSL cannot read").lower().replace("_", " ")
