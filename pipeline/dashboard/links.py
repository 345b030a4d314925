"""Links for application teams: an address that opens the page of one user, or one client, until an end.

A link is signed with a key made of the dashboard's token. So no list of links is kept, and a new token ends them all.
"""

import hmac
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

from pipeline.errors import UsageError

TOKEN_VARIABLE: Final = "KQUOTA_DASHBOARD_TOKEN"  # noqa: S105 - the name of a variable
PATHS: Final = ("/me", "/me.txt", "/me.json")
"""All that a link opens."""
SHORTEST_TOKEN: Final = 16
"""Whoever has a link can try tokens on it, as many as they like: a shorter token signs none."""

_SHAPE: Final = re.compile(r"[0-9]{1,15}\.[0-9a-f]{64}")
_ASK: Final = "ask those who run kquota for a new link"
_FORBIDDEN: Final = (f"this link opens {', '.join(PATHS)} and nothing else", "open one of these with it")


class About(NamedTuple):
    """What a link is about.

    Attributes:
        cluster: As in the address; None = the only one, or the first.
        client_id: None = all clients of the user; "" = those without a client-id.
    """

    cluster: str | None
    user: str
    client_id: str | None

    @property
    def parameters(self) -> dict[str, str]:
        """Those of the address."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def link_key(token: str | None) -> bytes | None:
    """The key of links, made of the dashboard's token; None without one, or if it is shorter than `SHORTEST_TOKEN`."""
    if token is None or len(token) < SHORTEST_TOKEN:
        return None
    return hmac.new(token.encode(), b"kquota dashboard link", sha256).digest()


def link_token(key: bytes, about: About, end_ms: int) -> str:
    """The end of a link in epoch milliseconds, a full stop, and HMAC-SHA256 over end and subject in hexadecimal."""
    signed = json.dumps([*about, end_ms]).encode()
    return f"{end_ms}.{hmac.new(key, signed, sha256).hexdigest()}"


def link_text(address: str, token: str | None, about: About, end_ms: int) -> str:
    """The address of a link.

    Args:
        address: The dashboard's.

    Raises:
        UsageError: The dashboard has no token, or one that is too short to sign with.
    """
    key = link_key(token)
    if key is None:
        what = "the dashboard has no token" if token is None else "the dashboard's token is too short"
        msg = f"{what}, so no link can be signed"
        raise UsageError(
            msg, f"give link and dashboard the same --token-file or {TOKEN_VARIABLE}, as of `openssl rand -hex 32`"
        )
    query = urlencode({**about.parameters, "token": link_token(key, about, end_ms)})
    return f"{address.rstrip('/')}{PATHS[0]}?{query}"


def link_mistake(key: bytes | None, about: About, token: str, now_ms: int) -> tuple[str, str] | None:
    """Why a link opens nothing at an instant, and what to do; None if it opens the page. Its end is exclusive."""
    text = token.partition(".")[0]
    end_ms = int(text) if _SHAPE.fullmatch(token) else -1
    # The whole text is compared: 07 and 7 are the same end, and only one of them was signed.
    wanted = link_token(key or b"", about, end_ms)
    if not hmac.compare_digest(token.encode(), wanted.encode()) or key is None:
        return "this link is not valid", _ASK
    if now_ms >= end_ms:
        return f"this link ended at {datetime.fromtimestamp(end_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC", _ASK
    return None


def forbidden(scope: Mapping[str, Any]) -> tuple[str, str] | None:
    """What to answer to a request that comes with a link's token for any other path; None for all other requests."""
    if scope["path"] in PATHS:
        return None
    query = parse_qsl(scope.get("query_string", b"").decode("latin-1"))
    given = [value for name, value in query if name == "token"]
    given += [value.decode("latin-1").removeprefix("Bearer ") for name, value in scope["headers"]
              if name == b"authorization"]  # fmt: skip
    return _FORBIDDEN if any(_SHAPE.fullmatch(one) for one in given) else None
