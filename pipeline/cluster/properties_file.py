"""Java properties files, read as Java reads them, and the references to secrets in their values.

Kafka's own tools read the same `client.properties`, so a backslash or a `${…}` must have the same meaning here.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import javaproperties

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
