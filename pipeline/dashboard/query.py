"""The parameters of requests, read strictly: with a misspelt one ignored, the answer would be about another thing."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.dashboard.errors import QueryRefused

MOST_ROWS: Final = 10_000
_AGE: Final = re.compile(r"([0-9]{1,6})(s|m|h|d)")
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked for.

    Attributes:
        user: Of this user; None = of any.
        client_id: Of this client-id, which may be ""; None = of any.
        owner: Of quotas of this owner; None = of any.
        since_ms: From this instant on, inclusive; None = as far back as the view goes.
        until_ms: Up to this instant, exclusive; None = now.
        limit: At most so many rows.
        decision_id: The beginning of a decision's id; None = none.
        search: Part of a name, an owner or a note; None = none.
        view: Of the stream: now or head.
    """

    user: str | None = None
    client_id: str | None = None
    owner: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    limit: int = 200
    decision_id: str | None = None
    search: str | None = None
    view: str = "now"


def read_query(parameters: Sequence[tuple[str, str]], known: Iterable[str], now_ms: int) -> Query:
    """Read the parameters of a request.

    Args:
        parameters: Names and values, in the order given, percent-decoded.
        known: The names that this request takes: those of `Query`, with `since` and `until` for instants.
        now_ms: Wall clock, for ages: `since=15m` is a quarter of an hour ago.

    Raises:
        QueryRefused: A parameter is unknown, repeated or out of range.
    """
    known = list(known)
    mistakes = []
    given: dict[str, object] = {}
    for name, text in parameters:
        if name not in known:
            mistakes.append(f"'{name}' must be one of {', '.join(known)}; got {name[:40]!r}")
        elif _FIELD.get(name, name) in given:
            mistakes.append(f"'{name}' must be given once; got it again")
        else:
            value, mistake = _READ.get(name, _text)(name, text, now_ms)
            given[_FIELD.get(name, name)] = value
            mistakes += [mistake] if mistake else []
    if mistakes:
        raise QueryRefused(mistakes)
    return Query(**given)  # type: ignore[arg-type]


_Read = tuple[object, str | None]


def _text(_name: str, text: str, _now_ms: int) -> _Read:
    return text, None


def _instant(name: str, text: str, now_ms: int) -> _Read:
    if text.isascii() and text.isdecimal() and len(text) < 16:
        return int(text), None
    age = _AGE.fullmatch(text)
    if age is not None:
        return now_ms - int(age[1]) * _UNIT_MS[age[2]], None
    return None, f"'{name}' must be epoch milliseconds or an age like 15m, 6h, 7d; got {text[:40]!r}"


def _limit(name: str, text: str, _now_ms: int) -> _Read:
    if text.isascii() and text.isdecimal() and 0 < int(text[:9]) <= MOST_ROWS and len(text) < 9:
        return int(text), None
    return 1, f"'{name}' must be a whole number from 1 to {MOST_ROWS}; got {text[:40]!r}"


def _view(name: str, text: str, _now_ms: int) -> _Read:
    return text, None if text in {"now", "head"} else f"'{name}' must be now or head; got {text[:40]!r}"


_FIELD: Final = {"since": "since_ms", "until": "until_ms"}
_READ: Final[dict[str, Callable[[str, str, int], _Read]]] = {
    "since": _instant,
    "until": _instant,
    "limit": _limit,
    "view": _view,
}
