"""The `ssl.*` entries of client properties, for Python's clients and for Java's.

Certificates and keys are PEM, in files or in the properties themselves (Kafka's KIP-651). Java's own stores need a
password-based format that neither Python nor kafka-python reads, so they are refused with the commands that convert.
"""

import re
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_STORES: Final = {
    "truststore": ("ssl.truststore.location", "ssl.truststore.certificates", "ssl.ca.location"),
    "keystore": (
        "ssl.keystore.location",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.key.location",
        "ssl.certificate.location",
    ),
}
KEYS: Final = frozenset({
    *_STORES["truststore"],
    *_STORES["keystore"],
    "ssl.truststore.type",
    "ssl.keystore.type",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "ssl.enabled.protocols",
    "ssl.protocol",
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
    """TLS entries that are wrong or not supported.

    Attributes:
        mistakes: One text per mistake: `'key' must …; got …`. They contain no secrets.
    """

    def __init__(self, mistakes: list[str]) -> None:
        self.mistakes = mistakes
        super().__init__("; ".join(mistakes))


@dataclass(frozen=True, slots=True)
class Tls:
    """What a client trusts, and who it is. All texts are PEM blocks.

    Attributes:
        authorities: Certificates it trusts; "" = those of the system.
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
        """As an `ssl.SSLContext`, for Python.

        Raises:
            TlsMistakes: certificates or key are damaged, do not fit each other, or the key's password is wrong.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = min(VERSIONS[name] for name in self.versions)
        context.maximum_version = max(VERSIONS[name] for name in self.versions)
        context.check_hostname = self.check_hostname
        if not self.authorities:
            context.load_default_certs()
        try:
            if self.authorities:
                context.load_verify_locations(cadata=self.authorities)
        except ssl.SSLError as exc:
            raise TlsMistakes([f"'ssl.truststore' must hold certificates; got {_reason(exc)}"]) from exc
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
                encrypted = "ENCRYPTED" in self.key
                what = "'ssl.key.password' must open the key" if encrypted else "'ssl.keystore' key must fit its chain"
                raise TlsMistakes([f"{what}; got {_reason(exc)}"]) from exc


def read_tls(properties: Mapping[str, str]) -> Tls:
    """The TLS entries among resolved client properties.

    Raises:
        TlsMistakes: entries are wrong or not supported; it names all of them.
    """
    mistakes: list[str] = []
    trusted = _store("truststore", properties, mistakes)
    own = _store("keystore", properties, mistakes)
    chain = [block for kind, block in own if kind.endswith("CERTIFICATE")]
    keys = [block for kind, block in own if not kind.endswith("CERTIFICATE")]
    if not mistakes and bool(chain) != bool(keys):
        alone = "the certificate" if chain else "the key"
        mistakes.append(f"'ssl.keystore' must hold a private key and its certificate; got {alone} alone")
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in {"", "none", "https"}:
        mistakes.append(f"'ssl.endpoint.identification.algorithm' must be https or empty; got {algorithm!r}")
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
    """The PEM blocks of trust store or key store: kind and block."""
    location = properties.get(f"ssl.{store}.location", "")
    kind = properties.get(f"ssl.{store}.type", "PEM")
    if kind.upper() != "PEM":
        mistakes.append(_not_pem(f"ssl.{store}.type", repr(kind), store, location))
        return []
    found: list[tuple[str, str]] = []
    for key in _STORES[store]:
        value = properties.get(key, "")
        if not value:
            continue
        text = _content(key, value, mistakes) if key.endswith("location") else value
        blocks = [(match[1], match[0]) for match in _BLOCK.finditer(text or "")]
        if text is not None and not blocks:
            got = f"no PEM block in {value}" if key.endswith("location") else "no PEM block"
            mistakes.append(_not_pem(key, got, store, location))
        for label, _ in blocks:
            if label not in _LABELS:
                convert = "openssl pkcs8 -topk8 -nodes -in KEY.pem -out KEY.pk8.pem"
                mistakes.append(f"'{key}' must hold a PKCS 8 key ('BEGIN PRIVATE KEY'); got {label!r}: {convert}")
        found += blocks
    return found


def _content(key: str, path: str, mistakes: list[str]) -> str | None:
    try:
        return Path(path).read_bytes().decode("ascii", errors="replace")
    except OSError as exc:
        mistakes.append(f"'{key}' must be a file that can be read; got {path} ({exc.strerror})")
        return None


def _not_pem(key: str, got: str, store: str, location: str) -> str:
    path = Path(location or f"{store}.jks")
    convert = _CONVERT[store].format(path=path, stem=path.with_suffix(""))
    return f"'{key}' must be PEM (Java's own stores can not be read here); got {got}: {convert}"


def _versions(properties: Mapping[str, str], mistakes: list[str]) -> tuple[str, ...]:
    names = [name.strip() for name in properties.get("ssl.enabled.protocols", ",".join(VERSIONS)).split(",")]
    if not set(names) <= VERSIONS.keys():
        mistakes.append(f"'ssl.enabled.protocols' must be some of {', '.join(VERSIONS)}; got {', '.join(names)}")
    if properties.get("ssl.protocol", "TLS") not in {"TLS", *VERSIONS}:
        mistakes.append(f"'ssl.protocol' must be one of {', '.join(VERSIONS)}; got {properties['ssl.protocol']!r}")
    return tuple(names)


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "text that OpenSSL can not read").lower().replace("_", " ")
