"""The dashboard over HTTP: the page, its JSON API, and the server. What answers for one client is in `client`.

    GET /, /client, /quotas, /pipeline    the page
    GET /team?…                           the page of one team, for who has a link to it, see `team`
    GET /access                           whether the token of this request, or none, opens the API
    GET /api/v1/…                         the views as JSON, see `PARAMETERS`
    GET /healthz                          200 while the process works
    GET /readyz                           200 once the tables can be read, else 503

Mistakes are answered with 400 (401, 404, 405, 421) and {"error": …, "fix": …}.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from heapq import nsmallest
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from pipeline.command_line import command_text
from pipeline.dashboard.client import SEE, client_document
from pipeline.dashboard.reader import Feed, TablesReader, client_of, encoded
from pipeline.dashboard.state import State, gauges, picked, standing
from pipeline.dashboard.team import LinkRefused, opened, page, team_page
from pipeline.errors import NotFound, PipelineError, printable
from pipeline.job.status import JobSigns
from pipeline.replay.story import tell_story
from pipeline.settings.model import Settings
from pipeline.tables.layout import TABLES
from pipeline.tables.opening import open_table, reading
from pipeline.tables.port import table_uri
from pipeline.tables.queries import Row, clients_seen, newest_value
from pipeline.tables.quotas.edit import alter_command
from pipeline.tables.quotas.history import QuotaVersion, row_texts, versions
from pipeline.tables.quotas.table import QuotaCommit, QuotaTable
from pipeline.tables.rates import Rates, read_rates
from pipeline.tables.throttles import decision_with_id, newest_throttle
from pipeline.web import (
    Guard,
    Listen,
    QueryRefused,
    WebServer,
    error_handlers,
    is_bearer,
    read_parameters,
    refuse_unguarded,
    whole_number,
)
from quota.entity import DEFAULT, QUOTA_TYPES, label, level_of
from quota.errors import QuotaError

log = logging.getLogger(__name__)

_BATCHES: Final = 120
_BATCHES_MS: Final = 120_000
_SAMPLE_BYTES: Final = 400
_DEAD_LETTERS: Final = 20
_LATENESS_ROWS: Final = 2_000
_VERSIONS: Final = 30
_CHANGES: Final = 50
_CANDIDATE: Final = "candidate.yaml"
MOST_ROWS: Final = 10_000
_STANDINGS: Final = ("any", "over", "near", "unused")


def _read_standing(text: str) -> str:
    if text not in _STANDINGS:
        msg = f"unknown standing {text[:40]!r}; use {', '.join(_STANDINGS[:-1])} or {_STANDINGS[-1]}"
        raise ValueError(msg)
    return text


class Query(BaseModel):
    """The parameters of a request; each path takes some of them. None = any.

    Attributes:
        client_id: "" for none.
        decision_id: The beginning of one.
        search: Part of a name, an owner, a note or a mode.
        offset: Without so many of the first rows; `limit` is the number of rows at most.
        standing: Of quotas with a rate over its bound, near it (80 % or more), or without usage.
    """

    model_config = ConfigDict(frozen=True)

    user: str | None = None
    client_id: str | None = None
    limit: Annotated[int, BeforeValidator(whole_number("limit", 1, MOST_ROWS))] = 200
    decision_id: str | None = None
    search: str | None = None
    offset: Annotated[int, BeforeValidator(whole_number("offset", 0, 10**6))] = 0
    standing: Annotated[str, BeforeValidator(_read_standing)] = "any"


PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "/api/v1/summary": (),
    "/api/v1/head": (),
    "/api/v1/client": ("user", "client_id"),
    "/api/v1/clients": ("search", "limit"),
    "/api/v1/explain": ("decision_id", "user", "client_id"),
    "/api/v1/quotas": ("search", "standing", "offset", "limit"),
    "/api/v1/quotas/history": ("limit",),
    "/api/v1/pipeline": (),
}
"""Path -> the names that its query may have."""

View = Callable[[Query], Any]
"""What answers a path."""


def read_query(parameters: Sequence[tuple[str, str]], known: Sequence[str]) -> Query:
    """Read the parameters of a request.

    Args:
        parameters: Percent-decoded, in the order given.
        known: The names that this request takes.

    Raises:
        QueryRefused: A parameter is unknown, repeated or out of range.
    """
    return read_parameters(parameters, Query, SEE, known)


class Answers:
    """The answers of the API; for several threads. The settings are the job's, for the words of `throttles explain`."""

    def __init__(self, reader: TablesReader, feed: Feed, settings: Settings) -> None:
        self._reader = reader
        self._settings = settings
        self.feed = feed

    def by_path(self) -> dict[str, View]:
        """What answers, by path."""
        reader, newest = self._reader, self.feed.newest
        return {
            "/api/v1/head": lambda _query: newest().head(),
            "/api/v1/summary": lambda _query: newest().summary(),
            "/api/v1/client": lambda query: client_document(reader, newest(), _client_in(query)),
            "/api/v1/clients": lambda query: clients_document(reader, newest(), query),
            "/api/v1/explain": self._explain,
            "/api/v1/quotas": lambda query: quotas_document(reader, newest(), query),
            "/api/v1/quotas/history": lambda query: quota_history(reader, query),
            "/api/v1/pipeline": lambda _query: pipeline_document(reader, newest()),
        }

    def team(self, link: str, token: str | None) -> bytes:
        """The page of the team that a link names; `LinkRefused` if it opens nothing."""
        now_ms = self.feed.now()
        return team_page(self._reader, self.feed.newest, opened(link, token, now_ms), now_ms)

    def _explain(self, query: Query) -> dict[str, Any]:
        try:
            return explained(self._reader, self.feed.newest(), query, self._settings)
        except NotFound:
            if query.decision_id:
                raise
            return {"decision_id": None}  # of a client that was never over a quota: no mistake of who asks


def _client_in(query: Query) -> tuple[str, str]:
    if not query.user:
        raise QueryRefused(["'user' is missing"], SEE)
    return query.user, query.client_id or ""


def pipeline_document(reader: TablesReader, state: State) -> dict[str, Any]:
    """The view Pipeline: batches, purgatory, dead letters, sources."""
    batches = _batches(reader, state)
    purgatory = _purgatory(reader, state)
    letters = dead_letters(reader)
    span_ms = batches[0]["processed_at_ms"] - batches[-1]["processed_at_ms"] if batches else 0
    good = sum(row["good_count"] for row in batches)
    return {
        **state.head(),
        "gauges": gauges(
            age_ms=state.health.last_batch_age_ms,
            delay_ms=state.health.lag_ms,
            ahead_ms=state.health.ahead_ms,
            events_per_second=good * 1_000 / span_ms if span_ms > 0 else None,
            late=sum(row["late_count"] for row in batches),
            held=purgatory["held"],
            late_p99_ms=purgatory["lateness_p99_ms"],
            unreadable=letters["last_hour"],
        ),
        "batches": batches,
        "purgatory": purgatory,
        "dead_letters": letters,
        "sources": [_source(reader.root, name) for name in TABLES],
    }


def _batches(reader: TablesReader, state: State) -> list[dict[str, Any]]:
    """The newest batches, the newest first."""
    if state.batch is None:
        return []
    shown = ("batch_id", "query_id", "processed_at_ms", "time_epoch", "evaluated_at_ms", "quota_version")
    counts = ("good_count", "late_count", "clamped_count", "ignored_count", "dead_count")
    rows = reader.query(
        "batches",
        f"SELECT {', '.join((*shown, *counts))} FROM source "  # noqa: S608 - names of ours
        f"WHERE time_epoch < {state.batch['time_epoch']} OR evaluated_at_ms >= "
        f"{state.batch['evaluated_at_ms'] - _BATCHES_MS} "
        f"ORDER BY time_epoch DESC, evaluated_at_ms DESC, processed_at_ms DESC, batch_id DESC LIMIT {_BATCHES}",
    )
    return [{**row, "lag_ms": max(row["processed_at_ms"] - row["evaluated_at_ms"], 0)} for row in rows]


def _source(root: str, name: str) -> dict[str, Any]:
    """The newest version of a table, and when it was committed, by the writer's clock; or why it cannot be read."""
    try:
        table = open_table(table_uri(root, name))
        with reading(name):
            at_ms = next((int(commit["timestamp"]) for commit in table.history(1)), None)
    except PipelineError as exc:
        return {"name": name, "version": None, "committed_at_ms": None, "failure": str(exc)}
    return {"name": name, "version": table.version(), "committed_at_ms": at_ms, "failure": None}


def _purgatory(reader: TablesReader, state: State) -> dict[str, Any]:
    """The number of throttles that are held, and the time by which the purgatory handed them out late."""
    newest_seq = max((row["publish_seq"] for row in state.recent), default=-1)
    rows = reader.query(
        "throttle_events",
        "SELECT lateness_ms FROM source WHERE lateness_ms IS NOT NULL "  # noqa: S608 - numbers of ours
        f"AND publish_seq > {newest_seq - _LATENESS_ROWS} ORDER BY lateness_ms",
    )
    ordered = [row["lateness_ms"] for row in rows]
    return {
        "held": len(state.running),
        "next_end_ms": min((row["throttled_until_ms"] for row in state.running), default=None),
        "lateness_p50_ms": _percentile(ordered, 0.5),
        "lateness_p99_ms": _percentile(ordered, 0.99),
        "lateness_max_ms": ordered[-1] if ordered else None,
        "checks": len(ordered),
    }


def _percentile(ordered: Sequence[int], part: float) -> int | None:
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else None


def dead_letters(reader: TablesReader) -> dict[str, Any]:
    """The dead letters of the hour before the newest one, newest first, with the beginning of what they hold."""
    newest_ms = newest_value(table_uri(reader.root, "dead_letters"), "appended_at_ms")
    if newest_ms is None:
        return {"dead_letters": [], "last_hour": 0}
    rows = reader.query(
        "dead_letters",
        'SELECT batch_id, appended_at_ms, topic, partition, "offset", element_index, cause, value FROM source '  # noqa: S608 - numbers of ours
        f'WHERE appended_at_ms >= {newest_ms - 3_600_000} ORDER BY appended_at_ms DESC, "offset" DESC',
    )
    return {"dead_letters": [_sample(row) for row in rows[:_DEAD_LETTERS]], "last_hour": len(rows)}


def _sample(row: dict[str, Any]) -> dict[str, Any]:
    value = row.pop("value")
    # Bytes of whoever may write to the topic: as text where they are, and never more than a sample.
    return {**row, "bytes": len(value), "sample": value[:_SAMPLE_BYTES].decode("utf-8", "backslashreplace")}


def quotas_document(reader: TablesReader, state: State, query: Query) -> dict[str, Any]:
    """The view Quotas: rows with the sensor that is nearest to each bound, the row nearest to a bound first."""
    table = QuotaTable(reader.root).read()
    nearest = read_rates(reader.root, Rates.nearest_of_quotas)
    found = (_quota_row(row, nearest) for row in table.rows if _is_found(row, query.search or ""))
    shown = sorted((row for row in found if query.standing in {"any", row["standing"]}), key=_nearest_first)
    # Counted in these rows, which may be newer than what was seen at the last look.
    page = {"version": table.version, "total": len(shown), "all": len(table.rows), "offset": query.offset}
    rows = [{**row, "command": _command_of(row)} for row in shown[query.offset : query.offset + query.limit]]
    return {**state.head(), **page, "rows": rows, "what_if": what_if_command()}


def _command_of(row: Mapping[str, Any]) -> str:
    """The command that sets a row as it is: whoever pastes it changes a figure."""
    values = {name: one["bound"] for name, one in row["bounds"].items()}
    labels = {} if values and row["mode"] == "enforce" else {"mode": row["mode"]}
    return alter_command(row["user"], row["client_id"], values | labels)


def what_if_command() -> str:
    """The commands that write all quotas to a file, to be edited, and replay the last 15 minutes with it."""
    export, replay = command_text("quotas", "export"), command_text("what-if", "-f", _CANDIDATE, "--since", "15m")
    return f"{export} >{_CANDIDATE} && {replay}"


def _nearest_first(row: Mapping[str, Any]) -> tuple[float, int]:
    """What a row of the view Quotas is sorted by: its most used bound, then its level."""
    return -max((one["used"] for one in row["bounds"].values()), default=0.0), row["level"]


def clients_document(reader: TablesReader, state: State, query: Query) -> dict[str, Any]:
    """Clients of the last minutes, and those that a quota names: held ones first, then the nearest to their bound."""
    seen, held = clients_seen(table_uri(reader.root, "usage")), state.held
    shares = 'SELECT "user", client_id, max(share) AS share FROM source WHERE own_rate IS NOT NULL GROUP BY 1, 2'
    parts = {client_of(row): row["share"] for row in read_rates(reader.root, lambda rates: rates.rows(shares))}
    named = {(row["user"], row["client_id"]) for row in QuotaTable(reader.root).read().rows}
    named = {entity for entity in named if all(entity) and DEFAULT not in entity}
    search = (query.search or "").replace(" ", "").lower()
    known = {(user, client_id) for user, client_id in held.targets if client_id is not None}
    found = [one for one in {*seen, *known, *named} if search in "/".join(one).replace(" ", "").lower()]

    def rank(one: tuple[str, str]) -> tuple[Any, ...]:
        return not held.by(*one), -(parts.get(one) or 0.0), -seen.get(one, 0), one

    rows = [
        {
            "user": one[0],
            "client_id": one[1],
            "seen_ms": seen.get(one),
            "used": parts.get(one),
            "throttled": bool(held.by(*one)),
        }
        for one in nsmallest(query.limit, found, key=rank)
    ]  # fmt: skip
    return {**state.head(), "clients": rows, "total": len(found)}


def _is_found(row: Mapping[str, Any], search: str) -> bool:
    text = " ".join(str(row[name] or "") for name in ("user", "client_id", "owner", "note", "mode"))
    return search.casefold() in text.casefold()


def _quota_row(row: Mapping[str, Any], nearest: Mapping[tuple[str, str, str], Row]) -> dict[str, Any]:
    entity = row["user"], row["client_id"]
    bounds = {}
    for name in QUOTA_TYPES:
        if row[name] is not None:
            rate = nearest.get((*entity, name))
            used = None if rate is None else rate["observed"] / row[name]
            # What a tenant lends is not over the quota.
            of_bound = used if rate is None or rate["tenant"] is None else rate["share"]
            bounds[name] = {
                "bound": row[name],
                "observed": None if rate is None else rate["observed"],
                "used": used or 0.0,
                "standing": standing(of_bound, row["mode"]),
                "user": None if rate is None else rate["user"],
                "client_id": None if rate is None else rate["client_id"],
            }
    shown = picked(row, ("user", "client_id", "mode", "owner", "note"))
    stands = [bounds[name]["standing"] for name in bounds]
    worst = next((name for name in ("over", "near", "within", "shadow") if name in stands), "unused")
    if all(one["observed"] is None for one in bounds.values()):
        worst = "unused"
    return {
        **shown, "entity": label(*entity), "level": int(level_of(*entity)), "standing": worst, "bounds": bounds,
    }  # fmt: skip


def quota_history(reader: TablesReader, query: Query) -> dict[str, Any]:
    """The newest versions of the quota table, newest first."""
    found = versions(QuotaTable(reader.root), min(query.limit, _VERSIONS))
    return {"versions": [_version_row(one) for one in found]}


def _version_row(version: QuotaVersion) -> dict[str, Any]:
    commit, changes = version.commit, version.changes[:_CHANGES]
    return {
        "version": commit.version,
        "committed_at_ms": commit.committed_at_ms,
        "operation": commit.operation,
        **{name: getattr(commit.audit, name, None) for name in ("actor", "host", "reason")},
        "by": _made_by(commit),
        "mode": version.mode,
        "changes": [change.as_row() for change in changes],
        "texts": row_texts(changes),
        "more": len(version.changes) - len(changes),
    }


_OF_THE_TABLE: Final = frozenset({"CREATE TABLE", "ADD CONSTRAINT", "ADD COLUMN", "SET TBLPROPERTIES"})
"""Operations that change no quota."""


def _made_by(commit: QuotaCommit) -> str:
    """Who made a version, in words. kquota makes and extends the table itself without an audit."""
    if commit.audit is not None:
        return f"{commit.audit.actor} at {commit.audit.host}"
    if commit.operation in _OF_THE_TABLE:
        return f"kquota, for the table itself ({commit.operation.lower()})"
    return f"another tool ({commit.operation.lower()})"


def explained(reader: TablesReader, state: State, query: Query, settings: Settings) -> dict[str, Any]:
    """Why a client was throttled: by the beginning of a decision's id, or the newest throttle of a client.

    Without a client-id it is that of all client-ids of a user.

    Raises:
        QueryRefused: Neither is given.
        NotFound, UsageError: As `throttles explain`.
    """
    if query.decision_id:
        decision, now_ms, client = decision_with_id(reader.root, query.decision_id), None, None
    elif query.user is not None:
        client = query.user, query.client_id
        decision, now_ms = newest_throttle(reader.root, *client), state.now_ms
    else:
        raise QueryRefused(["'decision_id' or 'user' is missing"], SEE)
    settings = settings.model_copy(update={"engine": reader.engine_settings()})
    found = tell_story(settings, decision, now_ms, client, running=state.running)
    return {
        **picked(decision, ("decision_id", "user", "client_id", "quota_type", "evaluated_at_ms")),
        "title": printable(found.title),
        "facts": [[name, printable(text)] for name, text in found.facts],
        "published": [printable(line.strip()) for line in found.published],
        "now": found.now,
    }


# The views over HTTP.


TOKEN_VARIABLE: Final = "KQUOTA_DASHBOARD_TOKEN"  # noqa: S105 - its name
STATIC: Final = Path(__file__).with_name("static")
_ANSWERS_AT_ONCE: Final = 2
_KINDS: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""They keep a browser from loading anything from elsewhere."""


def build_app(answers: Answers, token: str | None = None) -> Starlette:
    """Make the ASGI application; `token` guards the API, see `Guard`."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        answers.feed.start()
        try:
            yield
        finally:
            await run_in_threadpool(answers.feed.close)

    routes = [Route(path, partial(_file, "index.html")) for path in ("/", "/client", "/quotas", "/pipeline")]
    routes += [Route("/static/{name}", _static), Route("/favicon.svg", partial(_file, "favicon.svg"))]
    # Every answer that reads the tables needs memory, and more of them at a time than there are cores gain nothing.
    # Files are served by other threads, so they are answered under any load.
    at_once = asyncio.Semaphore(_ANSWERS_AT_ONCE)
    routes += [Route(path, partial(_answered, at_once, path, view)) for path, view in answers.by_path().items()]
    routes += [Route("/team", partial(_team, at_once, answers, token)), Route("/access", partial(_access, token))]
    routes += [Route("/healthz", _healthz), Route("/readyz", partial(_readyz, answers.feed))]
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[
            # The page itself holds no data and shows the form for the token.
            Middleware(Guard, token=token, is_open=_is_open, headers=_HEADERS),
        ],
        exception_handlers=_ERRORS | {HTTPException: _page_or_error},
    )


def _is_open(path: str) -> bool:
    return not path.startswith("/api/")


async def _answered(at_once: asyncio.Semaphore, path: str, view: View, request: Request) -> Response:
    """Make an answer. Not in the event loop: a look at the tables takes milliseconds."""
    query = read_query(request.query_params.multi_items(), PARAMETERS[path])
    async with at_once:
        return _json(await run_in_threadpool(lambda: encoded(view(query))))


async def _team(at_once: asyncio.Semaphore, answers: Answers, token: str | None, request: Request) -> Response:
    try:
        async with at_once:
            content, status = await run_in_threadpool(answers.team, request.query_params.get("link", ""), token), 200
    except LinkRefused as exc:
        content, status = page("This link opens nothing", exc.message, exc.fix), 403
    except (PipelineError, QuotaError) as exc:
        log.warning("the page of a team cannot be made: %s", exc)
        content, status = (
            page("The figures cannot be read now", "This page is loaded again by itself.", again=True),
            503,
        )
    return Response(content, status, media_type="text/html", headers={"Cache-Control": "no-store"})


def _json(text: bytes, status: int = 200) -> Response:
    return Response(text, status, media_type="application/json", headers={"Cache-Control": "no-store"})


async def _static(request: Request) -> Response:
    return await _file(request.path_params["name"], request)


async def _file(name: str, _request: Request) -> Response:
    path = STATIC / name
    if path.parent != STATIC or path.suffix not in _KINDS or not path.is_file():
        raise HTTPException(404)
    return FileResponse(path, media_type=_KINDS[path.suffix], headers={"Cache-Control": "no-cache"})


async def _access(token: str | None, request: Request) -> Response:
    """Not with 401: the page asks before it has a token, and browsers log each 401 as an error."""
    given = request.headers.get("authorization", "").encode("latin-1")
    return _json(encoded({"accepted": token is None or is_bearer(given, token)}))


async def _healthz(_request: Request) -> Response:
    return _json(encoded({"status": "ok"}))


async def _readyz(feed: Feed, _request: Request) -> Response:
    state = feed.state
    if state is None or state.health.state == "unreadable":
        return _json(encoded({"status": "not ready", "why": "" if state is None else state.health.text}), 503)
    return _json(encoded({"status": "ready", "health": state.health.state}))


_ERRORS: Final = error_handlers(SEE)


async def _page_or_error(request: Request, exc: Any) -> Response:
    path = request.url.path
    if exc.status_code == 404 and not path.startswith("/api/") and "text/html" in request.headers.get("accept", ""):
        # The page has a sentence for it, and a link.
        return FileResponse(STATIC / "index.html", 404, media_type=_KINDS[".html"])
    answer: Response = await _ERRORS[HTTPException](request, exc)
    return answer


# The server: all parts, on one socket.

_FINISH_SECONDS: Final = 2


class DashboardServer(WebServer):
    """One listening socket in front of the application.

    Raises:
        ListenRefused: Other machines could connect without a token, or the system does not let it listen there.
    """

    def __init__(self, settings: Settings, signs: JobSigns, listen: Listen, token: str | None) -> None:
        refuse_unguarded(listen, token, TOKEN_VARIABLE)
        reader = TablesReader(settings, signs)
        answers = Answers(reader, Feed(reader), settings)
        app = build_app(answers, token)
        super().__init__(app, listen, finish_seconds=_FINISH_SECONDS)
