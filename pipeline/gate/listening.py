"""Where to listen, and the token that requests must carry. It loads no client of Kafka: the dashboard needs none."""

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pipeline.gate.errors import GateTokenInvalid, ListenAddressInvalid

TOKEN_VARIABLE: Final = "KQUOTA_GATE_TOKEN"  # noqa: S105 - the name of a variable


class Listen(NamedTuple):
    """Where to listen.

    Attributes:
        host: A name or an address.
        port: 0 means any free one.
    """

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Only this machine can connect. Every host name except localhost counts as reachable from outside."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_listen(text: str) -> Listen:
    """Read HOST:PORT. An IPv6 address stands in brackets.

    Raises:
        ListenAddressInvalid: The text is something else.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ListenAddressInvalid(text)
    if not (host and colon and port.isascii() and port.isdecimal() and int(port) < 65_536):
        raise ListenAddressInvalid(text)
    return Listen(host, int(port))


def read_token(
    token_file: Path | None, environ: Mapping[str, str] = os.environ, variable: str = TOKEN_VARIABLE
) -> str | None:
    """The bearer token: the first line of the file, else the environment variable, else None.

    Raises:
        GateTokenInvalid: The file can not be read, or the token is empty or has a character that is not visible ASCII.
    """
    source = variable if token_file is None else str(token_file)
    if token_file is None:
        if variable not in environ:
            return None
        token = environ[variable]
    else:
        try:
            token = token_file.read_text(encoding="utf-8").partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise GateTokenInvalid(source, f"a file that can not be read ({type(exc).__name__})") from exc
    if not token:
        raise GateTokenInvalid(source, "an empty one")
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise GateTokenInvalid(source, "one with other characters")
    return token
