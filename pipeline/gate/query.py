"""The query of `GET /v1/throttle`.

It is read strictly: if a misspelt parameter were ignored, the answer would be about another client.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAX_WAIT_MS: Final = 60_000

_KNOWN: Final = ("user", "client_id", "broker_id", "wait_ms")


@dataclass(frozen=True, slots=True)
class ThrottleQuery:
    """Which client the query asks about.

    Attributes:
        user: Not empty.
        client_id: "" if the client has none.
        broker_id: "" means only throttles of the whole cluster count.
        wait_ms: How long the answer may wait while the client is throttled, 0 to `MAX_WAIT_MS`.
    """

    user: str
    client_id: str = ""
    broker_id: str = ""
    wait_ms: int = 0


class QueryRefused(ValueError):
    """A query that can not be answered. It names all mistakes at once.

    Attributes:
        mistakes: One text per mistake: `'name' must …; got …`.
    """

    def __init__(self, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("; ".join(mistakes))


def read_query(parameters: Sequence[tuple[str, str]]) -> ThrottleQuery:
    """Read the parameters of a request.

    Args:
        parameters: Names and values, in the order given, percent-decoded.

    Raises:
        QueryRefused: A parameter is unknown, repeated, missing or out of range.
    """
    given = dict(parameters)
    names = [name for name, _ in parameters]
    mistakes = [
        f"'{name}' must be one of {', '.join(_KNOWN)}; got {name!r}" for name in sorted(set(names) - set(_KNOWN))
    ]
    mistakes += [f"'{name}' must be given once; got it {names.count(name)} times" for name in _KNOWN if
                 names.count(name) > 1]  # fmt: skip
    if not given.get("user"):
        mistakes.append(f"'user' must not be empty; got {'an empty one' if 'user' in given else 'none'}")
    wait = given.get("wait_ms", "0")
    is_number = wait.isascii() and wait.isdecimal() and len(wait) < 10
    if not is_number or int(wait) > MAX_WAIT_MS:
        mistakes.append(f"'wait_ms' must be a whole number from 0 to {MAX_WAIT_MS}; got {wait[:20]!r}")
    if mistakes:
        raise QueryRefused(mistakes)
    return ThrottleQuery(given["user"], given.get("client_id", ""), given.get("broker_id", ""), int(wait))
