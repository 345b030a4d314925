"""What the API takes: its paths and their parameters."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from pipeline.web import read_parameters, whole_number

SEE: Final = "see docs/dashboard.md"
STREAM: Final = "/api/v1/stream"
QUOTAS_CSV: Final = "/api/v1/quotas.csv"
MOST_ROWS: Final = 10_000
_AGE: Final = re.compile(r"([0-9]{1,6})(s|m|h|d)")
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_CLOCK: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2})?Z?)?")


def _instant(text: object, info: ValidationInfo) -> object:
    if not isinstance(text, str):
        return text
    if text.isascii() and text.isdecimal() and len(text) < 16:
        return int(text)
    now_ms: int = (info.context or {})["now_ms"]
    if age := _AGE.fullmatch(text):
        return now_ms - int(age[1]) * _UNIT_MS[age[2]]
    found = _clock_ms(text, now_ms) if _CLOCK.fullmatch(text) else _date_ms(text)
    if found is None:
        msg = f"unknown time range {text[:40]!r}; use 15m, 6h, 7d, 03:12, 2026-01-31T03:12 (UTC) or epoch milliseconds"
        raise ValueError(msg)
    return found


def _clock_ms(text: str, now_ms: int) -> int:
    """The newest instant, not after now, at which a clock in UTC showed this."""
    hour, minute, second = (int(part) for part in (text + ":00").split(":")[:3])
    day_ms = _UNIT_MS["d"]
    at_ms = now_ms // day_ms * day_ms + ((hour * 60 + minute) * 60 + second) * 1_000
    return at_ms if at_ms <= now_ms else at_ms - day_ms


def _date_ms(text: str) -> int | None:
    if not _DATE.fullmatch(text):
        return None
    try:
        return int(datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC).timestamp() * 1_000)
    except ValueError:
        return None


def _one_of(name: str, words: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            msg = f"unknown {name} {text[:40]!r}; use {', '.join(words[:-1])} or {words[-1]}"
            raise ValueError(msg)
        return text

    return read


_Instant = Annotated[int | None, BeforeValidator(_instant)]
_View = Annotated[str, BeforeValidator(_one_of("view", ("now", "head")))]
_Sort = Annotated[str, BeforeValidator(_one_of("sort", ("used", "name", "owner", "level")))]
_Mode = Annotated[str, BeforeValidator(_one_of("mode", ("any", "enforce", "shadow", "exempt")))]
_Standing = Annotated[str, BeforeValidator(_one_of("standing", ("any", "over", "near", "unused")))]


class Query(BaseModel):
    """The parameters of a request; each path takes some of them. None = any.

    Attributes:
        client_id: "" for none.
        owner: Of quotas of this owner.
        since_ms: From this instant on; `until_ms` is exclusive.
        decision_id: The beginning of one.
        search: Part of a name, an owner, a note or a mode.
        offset: Without so many of the first rows; `limit` is the number of rows at most.
        sort: What the rows are sorted by: the nearest to its bound first, or a name.
        standing: Of quotas with a rate over its bound, near it (80 % or more), or without usage.
        view: now: all of the view Now. head: only time, health and versions.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    user: str | None = None
    client_id: str | None = None
    owner: str | None = None
    since_ms: _Instant = Field(None, alias="since")
    until_ms: _Instant = Field(None, alias="until")
    limit: Annotated[int, BeforeValidator(whole_number("limit", 1, MOST_ROWS))] = 200
    decision_id: str | None = None
    search: str | None = None
    offset: Annotated[int, BeforeValidator(whole_number("offset", 0, 10**6))] = 0
    sort: _Sort = "used"
    mode: _Mode = "any"
    standing: _Standing = "any"
    view: _View = "now"


_ROWS: Final = ("user", "client_id", "owner", "since", "limit")
_QUOTAS: Final = ("user", "client_id", "owner", "search", "mode", "standing", "sort", "offset", "limit")
PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "/api/v1/summary": ("since", "until"),
    "/api/v1/throttles": _ROWS,
    "/api/v1/events": _ROWS,
    "/api/v1/client": ("user", "client_id", "since", "until"),
    "/api/v1/protected": ("user", "client_id", "since", "until"),
    "/api/v1/clients": ("search", "limit"),
    "/api/v1/explain": ("decision_id", "user", "client_id"),
    "/api/v1/quotas": _QUOTAS,
    QUOTAS_CSV: _QUOTAS,
    "/api/v1/quotas/history": ("limit",),
    "/api/v1/pipeline": (),
    "/api/v1/dead_letters": ("since", "limit"),
    STREAM: ("view",),
}
"""Path -> the names that its query may have."""


def read_query(parameters: Sequence[tuple[str, str]], known: Sequence[str], now_ms: int) -> Query:
    """Read the parameters of a request.

    Args:
        parameters: Percent-decoded, in the order given.
        known: The names that this request takes.
        now_ms: Wall clock, for ages: `since=15m` is a quarter of an hour ago.

    Raises:
        QueryRefused: A parameter is unknown, repeated or out of range.
    """
    return read_parameters(parameters, Query, SEE, known, now_ms=now_ms)
