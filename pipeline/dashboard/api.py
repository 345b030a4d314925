"""What each path of the API answers: rows of the tables, through the views; and the OpenAPI document of it."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pipeline.dashboard.client_reading import client_document
from pipeline.dashboard.editing import Editing
from pipeline.dashboard.query import Query
from pipeline.dashboard.reader import Feed, TablesReader
from pipeline.dashboard.state import State, event_row, throttled_row
from pipeline.dashboard.views import dead_letters, explained, pipeline_document, quota_history, quotas_document
from pipeline.errors import Unreachable
from pipeline.settings.model import Settings


class Answers:
    """The answers of the API; for several threads.

    Args:
        settings: Of the job, for the words of `throttles explain`.
    """

    def __init__(self, reader: TablesReader, feed: Feed, settings: Settings, may_write: bool = False) -> None:
        self.editing = Editing(reader.root, may_write)
        self._reader = reader
        self._settings = settings
        self._feed = feed
        reader.recent.keep()

    def by_path(self) -> dict[str, Callable[[Query], Any]]:
        """What answers, by path."""
        return {
            "/api/v1/summary": lambda _query: self._state().summary(),
            "/api/v1/throttles": self._throttles,
            "/api/v1/events": self._events,
            "/api/v1/client": lambda query: client_document(self._reader, self._state(), query),
            "/api/v1/explain": lambda query: explained(self._reader, query, self._settings),
            "/api/v1/quotas": self._quotas,
            "/api/v1/quotas/history": lambda query: quota_history(self._reader, query),
            "/api/v1/pipeline": lambda _query: pipeline_document(self._reader, self._state()),
            "/api/v1/dead_letters": lambda query: dead_letters(self._reader, query),
        }

    def by_posted_path(self) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
        """What takes an edit, by path; but for a what-if, which takes long (`editing.what_if`)."""
        return {"/api/v1/quotas/plan": self.editing.plan, "/api/v1/quotas/edit": self.editing.write}

    def _throttles(self, query: Query) -> dict[str, Any]:
        state = self._state()
        rows = [throttled_row(one, state.levels) for one in state.running]
        wanted = [row for row in rows if _is_wanted(row, query) and row["since_ms"] >= (query.since_ms or 0)]
        return {"now_ms": state.now_ms, "throttles": wanted[: query.limit], "total": len(wanted)}

    def _quotas(self, query: Query) -> dict[str, Any]:
        return {**quotas_document(self._reader, self._state(), query), "may_write": self.editing.may_write}

    def _events(self, query: Query) -> dict[str, Any]:
        state = self._state()
        rows = [event_row(row, state.levels) for row in state.recent]
        wanted = [row for row in rows if _is_wanted(row, query) and row["at_ms"] >= (query.since_ms or 0)]
        return {"now_ms": state.now_ms, "events": wanted[: query.limit]}

    def _state(self) -> State:
        state = self._feed.state
        if state is None:
            msg = "the dashboard has not read the tables yet"
            raise Unreachable(msg, "repeat this in a second")
        return state


def _is_wanted(row: dict[str, Any], query: Query) -> bool:
    wanted = (("user", query.user), ("client_id", query.client_id), ("owner", query.owner))
    return all(value is None or row.get(name) == value for name, value in wanted)


# The OpenAPI document and the parameters of each path: both from one list.

_WHAT: Final[Mapping[str, tuple[str, tuple[str, ...], str]]] = {
    "/api/v1/summary": ("The view Now: totals, who is throttled, top talkers, the newest records.", (), "summary"),
    "/api/v1/throttles": (
        "Clients that are throttled now; the longest held first.",
        ("user", "client_id", "owner", "since", "limit"),
        "throttles",
    ),
    "/api/v1/events": (
        "The newest records of the throttle topic, newest first, each with the owner of the quota its client has now.",
        ("user", "client_id", "owner", "since", "limit"),
        "events",
    ),
    "/api/v1/client": (
        "The view Client: rate against bound over time, throttles, decisions, edits, levels, what is owed.",
        ("user", "client_id", "since", "until"),
        "client",
    ),
    "/api/v1/explain": (
        "One decision in words; without an id the newest one of the client.",
        ("decision_id", "user", "client_id"),
        "explain",
    ),
    "/api/v1/quotas": (
        "Rows of the quota table, each bound with the rate that is nearest to it.",
        ("user", "client_id", "owner", "search", "limit"),
        "quotas",
    ),
    "/api/v1/quotas/history": ("Versions of the quota table: actor, time, reason and changes.", ("limit",), "history"),
    "/api/v1/pipeline": ("The view Pipeline: batches, purgatory, dead letters, sources.", (), "pipeline"),
    "/api/v1/dead_letters": ("Messages that are not usage events, newest first.", ("since", "limit"), "dead_letters"),
    "/api/v1/stream": (
        "Server-sent events: `state` at once, whenever it has changed, and every few seconds.",
        ("view",),
        "stream",
    ),
}

WHAT_IF: Final = "/api/v1/quotas/what-if"
POSTED: Final[Mapping[str, tuple[str, str]]] = {
    "/api/v1/quotas/plan": ("Preview of an edit: changes, and clients affected. Nothing is saved.", "plan"),
    WHAT_IF: ("Replays the last 15 minutes of usage with the edit. Nothing is saved.", "what_if"),
    "/api/v1/quotas/edit": ("Makes the edit; only with --allow-edits, a reason and the version.", "edit"),
}
"""Path -> what a POST to it does, and its name."""

PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {path: names for path, (_, names, _) in _WHAT.items()}
"""Path -> the names that its query may have."""

_TEXT: Final = {"type": "string"}
_INSTANT: Final = {"type": "string", "pattern": "^([0-9]{1,15}|[0-9]{1,6}[smhd])$"}
_DESCRIBED: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "user": ("Of this user.", _TEXT),
    "client_id": ('Of this client-id; "" for none.', _TEXT),
    "owner": ("Of quotas of this owner.", _TEXT),
    "since": ("From this instant on: epoch milliseconds, or an age such as 15m, 6h, 7d.", _INSTANT),
    "until": ("Up to this instant, exclusive; the same formats.", _INSTANT),
    "limit": ("At most so many rows.", {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 200}),
    "decision_id": ("The beginning of a decision_id.", _TEXT),
    "search": ("Part of a name, an owner, a note or a mode.", _TEXT),
    "view": ("now: all of the view Now. head: only time, health and versions.", {"enum": ["now", "head"]}),
}


def document() -> dict[str, Any]:
    """The document, in OpenAPI 3.1."""
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
        "paths": {
            **{path: {"get": _operation(*what)} for path, what in _WHAT.items()},
            **{path: {"post": _edit(*what)} for path, what in POSTED.items()},
        },
    }


def _operation(summary: str, parameters: tuple[str, ...], name: str) -> dict[str, Any]:
    kind = "text/event-stream" if name == "stream" else "application/json"
    schema = {"type": "string"} if name == "stream" else {"type": "object"}
    return {
        "operationId": name,
        "summary": summary,
        "parameters": [_parameter(one) for one in parameters],
        "responses": {
            "200": {"description": "The answer.", "content": {kind: {"schema": schema}}},
            "400": {"description": "A parameter is wrong: {error, fix}."},
            "401": {"description": "The token is missing or invalid."},
            "404": {"description": "Not found."},
            "503": {"description": "The tables cannot be read."},
        },
    }


def _edit(summary: str, name: str) -> dict[str, Any]:
    properties = {
        "user": _TEXT,
        "client_id": _TEXT,
        "values": {
            "type": "object",
            "description": "Column to value: bounds as `150kB/s`, `50%` or numbers; null: none.",
        },
        "if_version": {"type": "integer", "description": "The version edited; any other is a conflict."},
        "reason": {"type": "string", "description": "Why; kept in the commit."},
    }
    return {
        "operationId": name,
        "summary": summary,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"type": "object", "properties": properties}}},
        },
        "responses": {
            "200": {"description": "The answer.", "content": {"application/json": {"schema": {"type": "object"}}}},
            "401": {"description": "The token is missing or invalid."},
            "409": {
                "description": "The table is at another version, another what-if runs, or the dashboard only reads."
            },
            "422": {"description": "The edit is not valid: {error, fix}."},
        },
    }


def _parameter(name: str) -> dict[str, Any]:
    description, schema = _DESCRIBED[name]
    return {"name": name, "in": "query", "required": False, "description": description, "schema": dict(schema)}
