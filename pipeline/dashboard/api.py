"""What the API takes: its paths, their parameters, the body of an edit; and the OpenAPI document made of them."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from pipeline.web import read_parameters, whole_number

SEE: Final = "see /api/v1/openapi.json"
_ROOT: Final = "/api/v1/"
STREAM: Final = f"{_ROOT}stream"
WHAT_IF: Final = f"{_ROOT}quotas/what-if"
QUOTAS_CSV: Final = f"{_ROOT}quotas.csv"
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


_Text = str | SkipJsonSchema[None]
_Instant = Annotated[int | None, BeforeValidator(_instant), WithJsonSchema({"type": "string"})]
_Limit = Annotated[int, Field(ge=1, le=MOST_ROWS), BeforeValidator(whole_number("limit", 1, MOST_ROWS))]
_VIEWS: Final = ("now", "head")
_SORTS: Final = ("used", "name", "owner", "level")
_MODES: Final = ("any", "enforce", "shadow", "exempt")
_STANDINGS: Final = ("any", "over", "near", "unused")
_View = Annotated[str, BeforeValidator(_one_of("view", _VIEWS)), WithJsonSchema({"enum": [*_VIEWS]})]
_Sort = Annotated[str, BeforeValidator(_one_of("sort", _SORTS)), WithJsonSchema({"enum": [*_SORTS]})]
_Mode = Annotated[str, BeforeValidator(_one_of("mode", _MODES)), WithJsonSchema({"enum": [*_MODES]})]
_Standing = Annotated[str, BeforeValidator(_one_of("standing", _STANDINGS)), WithJsonSchema({"enum": [*_STANDINGS]})]
_Offset = Annotated[int, Field(ge=0, le=10**6), BeforeValidator(whole_number("offset", 0, 10**6))]


class Query(BaseModel):
    """The parameters of a request; each path takes some of them. None = any."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    user: _Text = Field(None, description="Of this user.")
    client_id: _Text = Field(None, description='Of this client-id; "" for none.')
    owner: _Text = Field(None, description="Of quotas of this owner.")
    since_ms: _Instant = Field(
        None,
        alias="since",
        description="From this instant on: an age such as 15m, 6h, 7d; UTC such as 03:12 or 2026-01-31T03:12; or epoch "
        "milliseconds.",
    )
    until_ms: _Instant = Field(None, alias="until", description="Up to this instant, exclusive; the same formats.")
    limit: _Limit = Field(200, description="At most so many rows.")
    decision_id: _Text = Field(None, description="The beginning of a decision_id.")
    search: _Text = Field(None, description="Part of a name, an owner, a note or a mode.")
    token: _Text = Field(None, description="That of a link of an application team.")
    offset: _Offset = Field(0, description="Without so many of the first rows.")
    sort: _Sort = Field("used", description="What the rows are sorted by: the nearest to its bound first, or a name.")
    mode: _Mode = Field("any", description="Of quotas in this mode.")
    standing: _Standing = Field(
        "any", description="Of quotas with a rate over its bound, near it (80 % or more), or without usage."
    )
    view: _View = Field("now", description="now: all of the view Now. head: only time, health and versions.")


class Edit(BaseModel):
    """The body of a request for an edit of one row of the quota table."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    user: str = ""
    client_id: str = ""
    values: dict[str, Any] = Field(
        {}, description="Column to value: bounds as `150kB/s`, `50%` or numbers; null: none."
    )
    if_version: int | SkipJsonSchema[None] = Field(None, description="The version edited; any other is a conflict.")
    reason: str = Field("", description="Why; kept in the commit.")
    baseline: Literal["today", "happened"] = Field(
        "today", description="What a what-if compares with: the usage with today's quotas, or as it happened."
    )


_ROWS: Final = ("user", "client_id", "owner", "since", "limit")
_QUOTAS: Final = ("user", "client_id", "owner", "search", "mode", "standing", "sort", "offset", "limit")
_GET: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "summary": (("since", "until"), "The view Now: the verdict, totals, who is throttled, top talkers, the newest "
                                    "records; with `since` or `until` as of then, with who was held in between."),
    "throttles": (_ROWS, "Clients that are throttled now; the longest held first."),
    "events": (_ROWS, "The newest records of the throttle topic, newest first, each with the owner of the quota its "
                      "client has now."),
    "client": (("user", "client_id", "since", "until"), "The view Client: rate against bound over time, throttles, "
                                                        "decisions, edits, levels, what is owed."),
    "protected": (("user", "client_id", "since", "until"), "What the others used, and how long each was "
                                                           "held, before and during its newest throttle."),
    "clients": (("search", "limit"), "Clients of the last minutes, and those with a quota of their own."),
    "explain": (("decision_id", "user", "client_id"), "One decision in words; without an id the newest throttle of "
                                                    "the client, if any."),
    "quotas": (_QUOTAS, "Rows of the quota table, each bound with the rate that is nearest to it."),
    "quotas.csv": (_QUOTAS, "The same rows as CSV."),
    "quotas/history": (("limit",), "Versions of the quota table: actor, time, reason and changes."),
    "pipeline": ((), "The view Pipeline: batches, purgatory, dead letters, sources."),
    "dead_letters": (("since", "limit"), "Messages that are not usage events, newest first."),
    "clusters": ((), "The names of the clusters that this dashboard shows; the first is the default."),
    "stream": (("view",), "Server-sent events: `state` at once, whenever it has changed, and every few seconds."),
}  # fmt: skip
_POST: Final = {
    "quotas/plan": "Preview of an edit: changes, and clients affected. Nothing is saved.",
    "quotas/what-if": "Replays the last 15 minutes of usage with the edit. Nothing is saved. With `Accept: "
                      "text/event-stream`: events `progress` with the percentage done, then `answer` or `error`.",
    "quotas/edit": "Makes the edit; only with --allow-edits, a reason and the version.",
}  # fmt: skip
PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {f"{_ROOT}{path}": names for path, (names, _) in _GET.items()}
"""Path -> the names that its query may have; with several clusters, each also `CLUSTER`."""
CLUSTERS: Final = f"{_ROOT}clusters"
CLUSTER: Final = "cluster"


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


def document(clusters: Sequence[str] = ()) -> dict[str, Any]:
    """The document, in OpenAPI 3.1; with several clusters, every path takes one of them."""
    paths = {
        **{f"{_ROOT}{path}": {"get": _operation(path, *what)} for path, what in _GET.items()},
        **{f"{_ROOT}{path}": {"post": _edit(path, what)} for path, what in _POST.items()},
    }
    if len(clusters) > 1:
        schema = {"enum": [*clusters], "default": clusters[0]}
        for operations in paths.values():
            for operation in operations.values():
                operation.setdefault("parameters", []).append(
                    {"name": CLUSTER, "in": "query", "required": False, "description": "Which one.", "schema": schema}
                )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "The dashboard of kquota",
            "version": "1",
            "description": "Views of the Delta tables. Instants are epoch milliseconds (`_ms`), rates are per second: "
            "byte rates in bytes and request time in percent of one thread.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
        "paths": paths,
    }


EVENTS: Final = "text/event-stream"
_CONTENT: Final = {"stream": (EVENTS, "string"), "quotas.csv": ("text/csv", "string")}


def _described(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """The schema of each field by the name in a request, without what only repeats the name."""
    fields: dict[str, dict[str, Any]] = model.model_json_schema()["properties"]
    return {
        name: {key: value for key, value in field.items() if key != "title" and value is not None}
        for name, field in fields.items()
    }


def _responses(kind: str, schema: str, failures: Mapping[str, str]) -> dict[str, Any]:
    good = {"description": "The answer.", "content": {kind: {"schema": {"type": schema}}}}
    failures = {"401": "The token is missing or invalid.", **failures}
    return {"200": good, **{status: {"description": text} for status, text in sorted(failures.items())}}


def _named(path: str, summary: str) -> dict[str, str]:
    return {"operationId": path.rpartition("/")[2].replace("-", "_"), "summary": summary}


def _operation(path: str, names: Sequence[str], summary: str) -> dict[str, Any]:
    fields = _described(Query)
    content = _CONTENT.get(path, ("application/json", "object"))
    failures = {"400": "A parameter is wrong: {error, fix}.", "404": "Not found.", "503": "The tables cannot be read."}
    parameters = [
        {"name": name, "in": "query", "required": False, "description": fields[name].pop("description"),
         "schema": fields[name]}
        for name in names
    ]  # fmt: skip
    return {**_named(path, summary), "parameters": parameters, "responses": _responses(*content, failures)}


def _edit(path: str, summary: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": _described(Edit)}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    failures = {
        "409": "The table is at another version, another what-if runs, or the dashboard only reads.",
        "422": "The edit is not valid: {error, fix}.",
    }
    responses = _responses("application/json", "object", failures)
    if f"{_ROOT}{path}" == WHAT_IF:
        responses["200"]["content"][EVENTS] = {"schema": {"type": "string"}}
    return {**_named(path, summary), "requestBody": body, "responses": responses}
