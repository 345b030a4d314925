"""Kafka's `client.properties` as kafka-python options.

The keys are those of the Java client, plus librdkafka's for certificates in PEM files. Keys that do not
concern the connection are left alone, as Kafka's own tools do: the same file serves consumers and producers.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pipeline.cluster.errors import ClientPropertiesInvalid

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

_JAAS: Final = re.compile(r"(?:[\w$]+\.)*(Plain|Scram)LoginModule\s+\w+\s+(.*?)\s*;?\s*$", re.DOTALL)
_JAAS_OPTION: Final = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;"']+))""")
_TAKEN_AS_THEY_ARE: Final = {
    "bootstrap.servers": "bootstrap_servers",
    "client.id": "client_id",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}
_CONCERN_THE_CONNECTION: Final = ("sasl.", "ssl.", "security.")


def read_client_properties(path: Path) -> dict[str, str]:
    """Read a Java properties file: `key=value` or `key: value`, `#` and `!` comments, a backslash continues.

    Raises:
        ClientPropertiesInvalid: the file cannot be read, or a line is no setting.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ClientPropertiesInvalid(str(path), [f"cannot be read: {exc}"]) from exc
    properties: dict[str, str] = {}
    mistakes: list[str] = []
    for number, line in enumerate(re.sub(r"\\\r?\n[ \t]*", "", text).splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        match = re.match(r"([^\s=:]+)\s*[=:]\s*(.*)", stripped)
        if match is None:
            mistakes.append(f"setting {number} must be key=value; got {stripped.split()[0]!r}")
        else:
            properties[match[1]] = match[2]
    if mistakes:
        raise ClientPropertiesInvalid(str(path), mistakes)
    return properties


def kafka_options(properties: Mapping[str, str], source: str = "client properties") -> dict[str, Any]:
    """Keyword arguments for `KafkaProducer`, `KafkaConsumer` and `KafkaAdminClient`.

    Args:
        properties: Java keys and values.
        source: Named in the error: the file.

    Raises:
        ClientPropertiesInvalid: security settings that cannot be kept are refused, all at once, and never
            skipped: half a security setting is worse than none.
    """
    options: dict[str, Any] = {}
    mistakes: list[str] = []
    for key, value in properties.items():
        if key in _TAKEN_AS_THEY_ARE:
            options[_TAKEN_AS_THEY_ARE[key]] = value
        elif key in _READERS:
            try:
                options |= _READERS[key](value)
            except ValueError as exc:
                mistakes.append(f"'{key}' must {exc}")
        elif key.startswith(_CONCERN_THE_CONNECTION):
            mistakes.append(f"'{key}' is not supported; supported are {', '.join(sorted(_supported()))}")
    if not mistakes:
        mistakes = _missing(options)
    if mistakes:
        raise ClientPropertiesInvalid(source, mistakes)
    return options


def _missing(options: Mapping[str, Any]) -> list[str]:
    if not str(options.get("security_protocol", "")).startswith("SASL_"):
        return []
    wanted = {
        "sasl_mechanism": "'sasl.mechanism' must be set",
        "sasl_plain_username": "'sasl.jaas.config' must be set, with a username",
        "sasl_plain_password": "'sasl.jaas.config' must be set, with a password",
    }
    return [f"{message} for {options['security_protocol']}" for key, message in wanted.items() if key not in options]


def _one_of(option: str, allowed: tuple[str, ...]) -> Callable[[str], dict[str, Any]]:
    def read(value: str) -> dict[str, Any]:
        if value.upper() not in allowed:
            msg = f"be one of {', '.join(allowed)}; got {value!r}"
            raise ValueError(msg)
        return {option: value.upper()}

    return read


def _jaas(value: str) -> dict[str, Any]:
    # The value is a secret: it is never quoted back.
    match = _JAAS.match(value.strip())
    if match is None:
        msg = "name PlainLoginModule or ScramLoginModule; got another module"
        raise ValueError(msg)
    given = {
        name: re.sub(r"\\(.)", r"\1", quoted) if quoted else single or bare
        for name, quoted, single, bare in _JAAS_OPTION.findall(match[2])
    }
    if not {"username", "password"} <= given.keys():
        msg = f"give username and password; got {', '.join(sorted(given)) or 'neither'}"
        raise ValueError(msg)
    return {"sasl_plain_username": given["username"], "sasl_plain_password": given["password"]}


def _endpoint_identification(value: str) -> dict[str, Any]:
    if value.lower() not in {"", "none", "https"}:
        msg = f"be https or empty; got {value!r}"
        raise ValueError(msg)
    return {"ssl_check_hostname": value.lower() == "https"}


def _truststore_type(value: str) -> dict[str, Any]:
    if value.upper() != "PEM":
        msg = f"be PEM (Java's own stores cannot be read here); got {value!r}"
        raise ValueError(msg)
    return {}


_READERS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "security.protocol": _one_of("security_protocol", SECURITY_PROTOCOLS),
    "sasl.mechanism": _one_of("sasl_mechanism", SASL_MECHANISMS),
    "sasl.jaas.config": _jaas,
    "ssl.endpoint.identification.algorithm": _endpoint_identification,
    "ssl.truststore.type": _truststore_type,
    "ssl.truststore.location": lambda value: {"ssl_cafile": value},
}


def _supported() -> set[str]:
    return {key for key in {**_TAKEN_AS_THEY_ARE, **_READERS} if key.startswith(_CONCERN_THE_CONNECTION)}


def command_line_options(bootstrap_server: str | None, command_config: Path | None) -> tuple[str, dict[str, Any]]:
    """Address and kafka-python options from `--bootstrap-server` and `--command-config`.

    The flag goes before `bootstrap.servers` of the file; the options are without the address.

    Raises:
        ClientPropertiesInvalid: the file is wrong, or no address is given in either.
    """
    options: dict[str, Any] = {}
    if command_config is not None:
        options = kafka_options(read_client_properties(command_config), str(command_config))
    address = bootstrap_server or options.get("bootstrap_servers")
    options.pop("bootstrap_servers", None)
    if not address:
        source = "the command line"
        raise ClientPropertiesInvalid(source, ["'--bootstrap-server' must be given; got nothing"])
    return str(address), options
