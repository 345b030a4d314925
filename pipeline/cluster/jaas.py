"""The value of `sasl.jaas.config`: one login module and its options. It is a secret, so no message quotes it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_PACKAGES: Final = {
    "PlainLoginModule": "org.apache.kafka.common.security.plain",
    "ScramLoginModule": "org.apache.kafka.common.security.scram",
    "OAuthBearerLoginModule": "org.apache.kafka.common.security.oauthbearer",
}
_MODULES: Final = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    "OAUTHBEARER": "OAuthBearerLoginModule",
}
_VALUE: Final = re.compile(r"(?:[\w$]+\.)*([\w$]+)\s+\w+\s*(.*?)\s*;?", re.DOTALL)
_OPTION: Final = re.compile(r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Jaas:
    """A login module and its options.

    Attributes:
        module: Its class name, without the package.
        options: By name; they hold secrets, so they are never printed.
    """

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
    """Read `module required name="value" …;`.

    Raises:
        ValueError: it is something else.
    """
    match = _VALUE.fullmatch(value.strip())
    if match is None or _OPTION.sub("", match[2]).strip():
        msg = 'be a login module, "required" and name="value" pairs; got something else'
        raise ValueError(msg)
    options = {
        name: re.sub(r"\\(.)", r"\1", double or single) or bare
        for name, double, single, bare in _OPTION.findall(match[2])
    }
    return Jaas(match[1], options)


def module_of(mechanism: str) -> str:
    """The login module of a SASL mechanism, one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER."""
    return _MODULES[mechanism]
