"""The parameters of requests to the API."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.web import Read, read_parameters, whole_number

SEE: Final = "see /api/v1/openapi.json"
MOST_ROWS: Final = 10_000
_AGE: Final = re.compile(r"([0-9]{1,6})(s|m|h|d)")
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Query:
    """The parameters of a request.

    Attributes:
        user: Of this user; None = of any.
        client_id: Of this client-id, which may be ""; None = of any.
        owner: Of quotas of this owner; None = of any.
        since_ms: From this instant on, inclusive; None = as far back as the view goes.
        until_ms: Up to this instant, exclusive; None = now.
        decision_id: The beginning of a decision's id; None = none.
        search: Part of a name, an owner or a note; None = none.
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
    readers = _readers(now_ms)
    given = read_parameters(parameters, {name: readers[name] for name in known}, SEE)
    return Query(**{_FIELD.get(name, name): value for name, value in given.items()})


def _readers(now_ms: int) -> Mapping[str, Read]:
    def instant(text: str) -> int:
        if text.isascii() and text.isdecimal() and len(text) < 16:
            return int(text)
        age = _AGE.fullmatch(text)
        if age is None:
            msg = f"unknown time range {text[:40]!r}; use 15m, 6h, 7d or epoch milliseconds"
            raise ValueError(msg)
        return now_ms - int(age[1]) * _UNIT_MS[age[2]]

    texts = dict.fromkeys(("user", "client_id", "owner", "decision_id", "search"), str)
    return {**texts, "since": instant, "until": instant, "limit": whole_number("limit", 1, MOST_ROWS), "view": _view}


def _view(text: str) -> str:
    if text not in {"now", "head"}:
        msg = f"unknown view {text[:40]!r}; use now or head"
        raise ValueError(msg)
    return text


_FIELD: Final = {"since": "since_ms", "until": "until_ms"}
