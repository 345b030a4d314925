"""Kafka's `client.properties` for each client: as kafka-python options, and as properties for Java.

The keys are those of the Java client, plus librdkafka's for certificates in PEM files. Keys that do not concern the
connection are left alone, as Kafka's own tools do: the same file serves consumers and producers. It is read as Java
reads it, so a backslash or a `${…}` has the same meaning here.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import javaproperties

from pipeline.cluster.sign_in import KEYS as TLS_KEYS
from pipeline.cluster.sign_in import Tls, TlsMistakes, TokenProvider, TokenSource, read_tls
from pipeline.documents import UnreadableFile, read_text_file
from pipeline.errors import ClientPropertiesInvalid

_REFERENCE: Final = re.compile(r"\$\{(env|file|dir):([^}]*)\}")


def read_properties(path: Path) -> dict[str, str]:
    """The settings in a properties file, with their references (see `resolved`) as they are.

    Raises `UnreadableFile` and as `parse_properties`.
    """
    return parse_properties(read_text_file("--command-config", path), str(path))


def parse_properties(text: str, source: str) -> dict[str, str]:
    """The settings in the text of a properties file, without blanks around values, as Kafka takes them.

    `ClientPropertiesInvalid` names all lines without a value: Java takes such a word for a key.
    """
    try:
        entries = [entry for entry in javaproperties.parse(text) if isinstance(entry, javaproperties.KeyValue)]
    except javaproperties.InvalidUEscapeError as exc:
        raise ClientPropertiesInvalid(source, [f"the escape {exc.escape} is not \\u and four digits"]) from exc
    lines = [entry for entry in entries if not entry.value and not entry.source.rstrip().endswith(("=", ":"))]
    if lines:
        raise ClientPropertiesInvalid(source, [f"the line {line.source.strip()!r} is not key=value" for line in lines])
    return {entry.key: entry.value.strip() for entry in entries}


def resolved(properties: Mapping[str, str], source: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The properties with every reference replaced by the secret it names.

    The references are those of Kafka's config providers, without the need to declare them: `${env:NAME}`,
    `${file:/path:key}` for an entry of a properties file, `${dir:/path:name}` for a file of a folder, and
    `${file:/path}` for a whole file, without a line end at its end. Inside `sasl.jaas.config` a reference is in double
    quotes; quotes and backslashes of the secret are escaped there.

    `ClientPropertiesInvalid` names all references that cannot be resolved, and no secret.
    """
    mistakes: list[str] = []

    def secret(key: str, match: re.Match[str]) -> str:
        try:
            found = _looked_up(match[1], match[2], environ)
        except (LookupError, OSError, UnicodeDecodeError, UnreadableFile, ClientPropertiesInvalid):
            mistakes.append(f"'{key}' refers to a secret that does not exist: {match[0]}")
            return ""
        return re.sub(r'(["\\])', r"\\\1", found) if key == "sasl.jaas.config" else found

    values = {
        key: _REFERENCE.sub(lambda match, key=key: secret(key, match), value)  # type: ignore[misc]
        for key, value in properties.items()
    }
    if mistakes:
        raise ClientPropertiesInvalid(source, mistakes)
    return values


def _looked_up(provider: str, place: str, environ: Mapping[str, str]) -> str:
    if provider == "env":
        return environ[place]
    path, _, name = place.rpartition(":")
    if provider == "dir":
        return _content(Path(path) / name)
    return read_properties(Path(path))[name] if path else _content(Path(name))


def _content(path: Path) -> str:
    return path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")


# The value of `sasl.jaas.config`: one login module and its options. It is a secret, so no message quotes it.

_PACKAGES: Final = {
    "PlainLoginModule": "org.apache.kafka.common.security.plain",
    "ScramLoginModule": "org.apache.kafka.common.security.scram",
    "OAuthBearerLoginModule": "org.apache.kafka.common.security.oauthbearer",
}
MODULES: Final = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    "OAUTHBEARER": "OAuthBearerLoginModule",
}
"""SASL mechanism -> its login module."""

_VALUE: Final = re.compile(r"(?:[\w$]+\.)*([\w$]+)\s+\w+\s*(.*?)\s*;?", re.DOTALL)
_OPTION: Final = re.compile(r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Jaas:
    """A login module, without its package, and its options: they hold secrets, so they are never printed."""

    module: str
    options: Mapping[str, str] = field(repr=False, default_factory=dict)

    def to_value(self) -> str:
        """The text as Java wants it."""
        words = [f"{_PACKAGES[self.module]}.{self.module} required"]
        for name, value in self.options.items():
            quoted = value.replace("\\", "\\\\").replace('"', '\\"')
            words.append(f'{name}="{quoted}"')
        return " ".join(words) + ";"


def parse_jaas(value: str) -> Jaas:
    """Read `module required name="value" …;`; `ValueError` if it is something else."""
    match = _VALUE.fullmatch(value.strip())
    if match is None or _OPTION.sub("", match[2]).strip():
        msg = 'is not a login module, "required" and name="value" pairs'
        raise ValueError(msg)
    options = {
        name: re.sub(r"\\(.)", r"\1", double or single) or bare
        for name, double, single, bare in _OPTION.findall(match[2])
    }
    return Jaas(match[1], options)


# What the settings mean for a client of Kafka.

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_SECURITY: Final = ("sasl.", "ssl.", "security.")
_NOT_SUPPORTED: Final = {
    "GSSAPI": "Kerberos (GSSAPI) is not supported: use SCRAM-SHA-512, OAUTHBEARER or a client certificate",
    "Krb5LoginModule": "Kerberos (Krb5LoginModule) is not supported: use SCRAM-SHA-512, OAUTHBEARER or a certificate",
    "tokenauth": "delegation tokens (tokenauth) are not supported: sign in with the user's own SCRAM password",
}
_OAUTH_KEYS: Final = {
    "sasl.oauthbearer.client.credentials.client.id": "clientId",
    "sasl.oauthbearer.client.credentials.client.secret": "clientSecret",
    "sasl.oauthbearer.scope": "scope",
}
_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
_LOGIN_HANDLER: Final = "sasl.login.callback.handler.class"
_SASL_KEYS: Final = frozenset(
    {"sasl.mechanism", "sasl.jaas.config", "sasl.username", "sasl.password", _ENDPOINT, _LOGIN_HANDLER, *_OAUTH_KEYS}
)
# These say when Java's client gets a new token; kafka-python does that without settings.
_TIMING: Final = ("sasl.login.refresh.", "sasl.login.retry.", "sasl.login.connect.timeout.", "sasl.login.read.timeout.")
_HARMLESS: Final = (*_TIMING, "sasl.kerberos.")
_JAVA_LOGIN_HANDLER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_KEPT_FOR_JAVA: Final = (
    *("client.dns.lookup", "client.rack", "connections.", "reconnect.", "socket.connection."),
    *_TIMING,
)


@dataclass(frozen=True, slots=True)
class SignIn:
    """How to connect, independent of the client library; without TLS or SASL, None and ""."""

    protocol: str
    tls: Tls | None = field(repr=False, default=None)
    mechanism: str = ""
    jaas: Jaas | None = None
    endpoint: str = ""


def kafka_options(properties: Mapping[str, str], source: str = "client properties") -> dict[str, Any]:
    """Keyword arguments for `KafkaProducer`, `KafkaConsumer` and `KafkaAdminClient`.

    Raises:
        ClientPropertiesInvalid: a security setting is wrong or not supported; the error names all of them. None is
            ever skipped, because the connection would be less secure than the file demands.
    """
    sign_in = read_sign_in(properties, source)
    taken = {"bootstrap.servers": "bootstrap_servers", "client.id": "client_id"}
    options: dict[str, Any] = {option: properties[key] for key, option in taken.items() if key in properties}
    if "security.protocol" in properties:
        options["security_protocol"] = sign_in.protocol
    try:
        if sign_in.tls is not None:
            options["ssl_context"] = sign_in.tls.context()
        if sign_in.jaas is not None:
            options["sasl_mechanism"] = sign_in.mechanism
            options |= _credentials(sign_in.jaas, sign_in.endpoint)
    except TlsMistakes as exc:
        raise ClientPropertiesInvalid(source, exc.mistakes) from exc
    return options


def java_properties(properties: Mapping[str, str], source: str = "client properties") -> dict[str, str]:
    """The entries a Java client needs to connect, complete: nothing in them refers to a file or a variable.

    Settings of producers and consumers are left out: Spark has its own. Raises as `kafka_options`.
    """
    sign_in = read_sign_in(properties, source)
    java = {key: value for key, value in properties.items() if key.startswith(_KEPT_FOR_JAVA)}
    if "security.protocol" in properties:
        java["security.protocol"] = sign_in.protocol
    if sign_in.tls is not None:
        java |= sign_in.tls.java_properties()
    if sign_in.jaas is not None:
        java |= {"sasl.mechanism": sign_in.mechanism, "sasl.jaas.config": sign_in.jaas.to_value()}
    if sign_in.endpoint:
        java |= {_ENDPOINT: sign_in.endpoint, _LOGIN_HANDLER: _JAVA_LOGIN_HANDLER}
    return java


def read_sign_in(properties: Mapping[str, str], source: str) -> SignIn:
    """The security settings among client properties; raises as `kafka_options`."""
    properties = resolved(properties, source)
    mistakes: list[str] = []
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    _refuse_other("security.protocol", protocol, SECURITY_PROTOCOLS, mistakes)
    known = TLS_KEYS | _SASL_KEYS | {"security.protocol"}
    ours = [key for key in properties if key.startswith(_SECURITY) and not key.startswith(_HARMLESS)]
    supported = ", ".join(sorted(known))
    mistakes += [f"'{key}' is not supported; supported are {supported}" for key in ours if key not in known]
    tls = None
    try:
        tls = read_tls(properties)
    except TlsMistakes as exc:
        mistakes += exc.mistakes
    mechanism, jaas = _sasl(properties, mistakes)
    if protocol.startswith("SASL_") and not mistakes:
        mistakes += _missing(protocol, mechanism, jaas, properties)
    if mistakes:
        raise ClientPropertiesInvalid(source, mistakes)
    is_sasl = protocol.startswith("SASL_")
    return SignIn(
        protocol=protocol,
        tls=tls if protocol.endswith("SSL") else None,
        mechanism=mechanism if is_sasl else "",
        jaas=jaas if is_sasl else None,
        endpoint=properties[_ENDPOINT] if is_sasl and mechanism == "OAUTHBEARER" else "",
    )


def _sasl(properties: Mapping[str, str], mistakes: list[str]) -> tuple[str, Jaas | None]:
    mechanism = properties.get("sasl.mechanism", "").upper()
    if mechanism in _NOT_SUPPORTED:
        mistakes.append(_NOT_SUPPORTED[mechanism])
        return "", None
    if mechanism:
        _refuse_other("sasl.mechanism", mechanism, SASL_MECHANISMS, mistakes)
    handler = properties.get(_LOGIN_HANDLER, _JAVA_LOGIN_HANDLER)
    if not handler.endswith(".OAuthBearerLoginCallbackHandler"):
        mistakes.append(f"'{_LOGIN_HANDLER}' {handler} is not {_JAVA_LOGIN_HANDLER}")
    jaas = None
    if "sasl.jaas.config" in properties:
        try:
            jaas = parse_jaas(properties["sasl.jaas.config"])
        except ValueError as exc:
            mistakes.append(f"'sasl.jaas.config' {exc}")
            return mechanism, None
        jaas = _checked(jaas, mechanism, mistakes)
    elif mechanism in SASL_MECHANISMS:
        given = {"username": "sasl.username", "password": "sasl.password"}
        if mechanism == "OAUTHBEARER":
            given = {name: key for key, name in _OAUTH_KEYS.items()}
        options = {name: properties[key] for name, key in given.items() if properties.get(key)}
        jaas = Jaas(MODULES[mechanism], options)
    return mechanism, jaas


def _checked(jaas: Jaas, mechanism: str, mistakes: list[str]) -> Jaas | None:
    if jaas.module in _NOT_SUPPORTED:
        mistakes.append(_NOT_SUPPORTED[jaas.module])
    elif jaas.options.get("tokenauth", "").lower() == "true":
        mistakes.append(_NOT_SUPPORTED["tokenauth"])
    elif jaas.module not in MODULES.values():
        known = "PlainLoginModule, ScramLoginModule or OAuthBearerLoginModule"
        mistakes.append(f"'sasl.jaas.config' names {jaas.module}, not {known}")
    elif mechanism in SASL_MECHANISMS and jaas.module != MODULES[mechanism]:
        mistakes.append(f"'sasl.jaas.config' names {jaas.module}, but {mechanism} needs {MODULES[mechanism]}")
    elif jaas.module != MODULES["OAUTHBEARER"] and not {"username", "password"} <= jaas.options.keys():
        got = ", ".join(sorted(jaas.options)) or "nothing"
        mistakes.append(f"'sasl.jaas.config' gives {got}, not username and password")
    else:
        return jaas
    return None


def _missing(protocol: str, mechanism: str, jaas: Jaas | None, properties: Mapping[str, str]) -> list[str]:
    if not mechanism:
        return [f"'sasl.mechanism' is not set, and {protocol} needs it"]
    options = jaas.options if jaas is not None else {}
    if mechanism != "OAUTHBEARER":
        wanted = [name for name in ("username", "password") if name not in options]
        return [f"'sasl.jaas.config' has no {name}, and {mechanism} needs it" for name in wanted]
    url = properties.get(_ENDPOINT, "")
    if urlsplit(url).scheme not in {"http", "https", "file"}:
        return [f"'{_ENDPOINT}' is {url or 'not set'}, not an http, https or file URL"]
    if url.startswith("file:") or {"clientId", "clientSecret"} <= options.keys():
        return []
    return ["'sasl.jaas.config' has no clientId and clientSecret, and OAUTHBEARER needs them"]


def _credentials(jaas: Jaas, endpoint: str) -> dict[str, Any]:
    options = jaas.options
    if not endpoint:
        return {"sasl_plain_username": options["username"], "sasl_plain_password": options["password"]}
    own_tls = {key: value for key, value in options.items() if key.startswith("ssl.")}
    marked = "extension_"
    extensions = {key.removeprefix(marked): value for key, value in options.items() if key.startswith(marked)}
    client_id, secret, scope = (options.get(name, "") for name in ("clientId", "clientSecret", "scope"))
    tls = read_tls(own_tls).context() if own_tls else None
    return {
        "sasl_oauth_token_provider": TokenProvider(TokenSource(endpoint, client_id, secret, scope, extensions, tls))
    }


def _refuse_other(key: str, value: str, allowed: tuple[str, ...], mistakes: list[str]) -> None:
    if value not in allowed:
        mistakes.append(f"'{key}' {value!r} is none of {', '.join(allowed)}")
