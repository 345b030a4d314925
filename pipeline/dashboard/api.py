"""What the API takes: its paths and their parameters."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict

from pipeline.web import read_parameters, whole_number

SEE: Final = "see docs/dashboard.md"
STREAM: Final = "/api/v1/stream"
QUOTAS_CSV: Final = "/api/v1/quotas.csv"
MOST_ROWS: Final = 10_000
RANGES: Final = {"15m": 900_000, "1h": 3_600_000, "6h": 21_600_000, "24h": 86_400_000, "7d": 604_800_000}
"""The lengths of the ranges of the view Client, in ms; each ends now."""


def _one_of(name: str, words: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            msg = f"unknown {name} {text[:40]!r}; use {', '.join(words[:-1])} or {words[-1]}"
            raise ValueError(msg)
        return text

    return read


_Range = Annotated[str, BeforeValidator(_one_of("range", tuple(RANGES)))]
_View = Annotated[str, BeforeValidator(_one_of("view", ("now", "head")))]
_Sort = Annotated[str, BeforeValidator(_one_of("sort", ("used", "name", "owner", "level")))]
_Mode = Annotated[str, BeforeValidator(_one_of("mode", ("any", "enforce", "shadow", "exempt")))]
_Standing = Annotated[str, BeforeValidator(_one_of("standing", ("any", "over", "near", "unused")))]


class Query(BaseModel):
    """The parameters of a request; each path takes some of them. None = any.

    Attributes:
        client_id: "" for none.
        owner: Of quotas of this owner.
        range: Of the view Client, one of `RANGES`.
        decision_id: The beginning of one.
        search: Part of a name, an owner, a note or a mode.
        offset: Without so many of the first rows; `limit` is the number of rows at most.
        sort: What the rows are sorted by: the nearest to its bound first, or a name.
        standing: Of quotas with a rate over its bound, near it (80 % or more), or without usage.
        view: now: all of the view Now. head: only time, health and versions.
    """

    model_config = ConfigDict(frozen=True)

    user: str | None = None
    client_id: str | None = None
    owner: str | None = None
    range: _Range = "15m"
    limit: Annotated[int, BeforeValidator(whole_number("limit", 1, MOST_ROWS))] = 200
    decision_id: str | None = None
    search: str | None = None
    offset: Annotated[int, BeforeValidator(whole_number("offset", 0, 10**6))] = 0
    sort: _Sort = "used"
    mode: _Mode = "any"
    standing: _Standing = "any"
    view: _View = "now"


_ROWS: Final = ("user", "client_id", "owner", "limit")
_QUOTAS: Final = ("user", "client_id", "owner", "search", "mode", "standing", "sort", "offset", "limit")
PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "/api/v1/summary": (),
    "/api/v1/throttles": _ROWS,
    "/api/v1/events": _ROWS,
    "/api/v1/client": ("user", "client_id", "range"),
    "/api/v1/protected": ("user", "client_id"),
    "/api/v1/clients": ("search", "limit"),
    "/api/v1/explain": ("decision_id", "user", "client_id"),
    "/api/v1/quotas": _QUOTAS,
    QUOTAS_CSV: _QUOTAS,
    "/api/v1/quotas/history": ("limit",),
    "/api/v1/pipeline": (),
    "/api/v1/dead_letters": ("limit",),
    STREAM: ("view",),
}
"""Path -> the names that its query may have."""


def read_query(parameters: Sequence[tuple[str, str]], known: Sequence[str]) -> Query:
    """Read the parameters of a request.

    Args:
        parameters: Percent-decoded, in the order given.
        known: The names that this request takes.

    Raises:
        QueryRefused: A parameter is unknown, repeated or out of range.
    """
    return read_parameters(parameters, Query, SEE, known)
