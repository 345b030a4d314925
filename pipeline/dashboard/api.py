"""What the API takes: its paths, their parameters, the body of an edit; and the OpenAPI document made of them."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from pipeline.web import read_parameters, whole_number

SEE: Final = "see /api/v1/openapi.json"
_ROOT: Final = "/api/v1/"
STREAM: Final = f"{_ROOT}stream"
WHAT_IF: Final = f"{_ROOT}quotas/what-if"
MOST_ROWS: Final = 10_000
_AGE: Final = re.compile(r"([0-9]{1,6})(s|m|h|d)")
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _instant(text: object, info: ValidationInfo) -> object:
    if not isinstance(text, str):
        return text
    if text.isascii() and text.isdecimal() and len(text) < 16:
        return int(text)
    age = _AGE.fullmatch(text)
    if age is None:
        msg = f"unknown time range {text[:40]!r}; use 15m, 6h, 7d or epoch milliseconds"
        raise ValueError(msg)
    return (info.context or {})["now_ms"] - int(age[1]) * _UNIT_MS[age[2]]


def _view(text: str) -> str:
    if text not in {"now", "head"}:
        msg = f"unknown view {text[:40]!r}; use now or head"
        raise ValueError(msg)
    return text


_Text = str | SkipJsonSchema[None]
_Instant = Annotated[
    int | None,
    BeforeValidator(_instant),
    WithJsonSchema({"type": "string", "pattern": "^([0-9]{1,15}|[0-9]{1,6}[smhd])$"}),
]
_Limit = Annotated[int, Field(ge=1, le=MOST_ROWS), BeforeValidator(whole_number("limit", 1, MOST_ROWS))]
_View = Annotated[str, BeforeValidator(_view), WithJsonSchema({"enum": ["now", "head"]})]


class Query(BaseModel):
    """The parameters of a request; each path takes some of them. None = any."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    user: _Text = Field(None, description="Of this user.")
    client_id: _Text = Field(None, description='Of this client-id; "" for none.')
    owner: _Text = Field(None, description="Of quotas of this owner.")
    since_ms: _Instant = Field(
        None, alias="since", description="From this instant on: epoch milliseconds, or an age such as 15m, 6h, 7d."
    )
    until_ms: _Instant = Field(None, alias="until", description="Up to this instant, exclusive; the same formats.")
    limit: _Limit = Field(200, description="At most so many rows.")
    decision_id: _Text = Field(None, description="The beginning of a decision_id.")
    search: _Text = Field(None, description="Part of a name, an owner, a note or a mode.")
    token: _Text = Field(None, description="That of a link of an application team.")
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


_ROWS: Final = ("user", "client_id", "owner", "since", "limit")
_GET: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "summary": ((), "The view Now: totals, who is throttled, top talkers, the newest records."),
    "throttles": (_ROWS, "Clients that are throttled now; the longest held first."),
    "events": (_ROWS, "The newest records of the throttle topic, newest first, each with the owner of the quota its "
                      "client has now."),
    "client": (("user", "client_id", "since", "until"), "The view Client: rate against bound over time, throttles, "
                                                        "decisions, edits, levels, what is owed."),
    "explain": (("decision_id", "user", "client_id"), "One decision in words; without an id the newest of the client."),
    "quotas": (("user", "client_id", "owner", "search", "limit"),
               "Rows of the quota table, each bound with the rate that is nearest to it."),
    "quotas/history": (("limit",), "Versions of the quota table: actor, time, reason and changes."),
    "pipeline": ((), "The view Pipeline: batches, purgatory, dead letters, sources."),
    "dead_letters": (("since", "limit"), "Messages that are not usage events, newest first."),
    "clusters": ((), "The names of the clusters that this dashboard shows; the first is the default."),
    "stream": (("view",), "Server-sent events: `state` at once, whenever it has changed, and every few seconds."),
}  # fmt: skip
_POST: Final = {
    "quotas/plan": "Preview of an edit: changes, and clients affected. Nothing is saved.",
    "quotas/what-if": "Replays the last 15 minutes of usage with the edit. Nothing is saved.",
    "quotas/edit": "Makes the edit; only with --allow-edits, a reason and the version.",
}
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
    content = ("text/event-stream", "string") if path == "stream" else ("application/json", "object")
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
    return {**_named(path, summary), "requestBody": body, "responses": responses}
