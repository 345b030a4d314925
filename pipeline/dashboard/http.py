"""The dashboard over HTTP: the page, its JSON API, one stream of new states, its metrics, and the server.

    GET /, /client, /quotas, /pipeline    the page
    GET /me, /me.txt, /me.json            what an application team sees with a link of its own
    GET /access                           whether the token of this request, or none, opens the API
    GET /api/v1/…                         see /api/v1/openapi.json
    POST /api/v1/quotas/…                 an edit: preview, what-if and, with --allow-edits, the commit
    GET /api/v1/stream                    server-sent events: the state, at once and whenever it changes
    GET /metrics                          Prometheus' text format
    GET /healthz                          200 while the process works
    GET /readyz                           200 once the tables can be read, else 503

Mistakes are answered with 400 (401, 403, 404, 405, 421) and {"error": …, "fix": …}. With several clusters each path
takes `cluster`, by default the first one; a cluster's tables are read from its first request on.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.clock import wall_ms
from pipeline.dashboard import links, teams
from pipeline.dashboard.api import (
    CLUSTER,
    CLUSTERS,
    EVENTS,
    PARAMETERS,
    QUOTAS_CSV,
    SEE,
    STREAM,
    WHAT_IF,
    document,
    read_query,
)
from pipeline.dashboard.editing import edit_refused
from pipeline.dashboard.links import TOKEN_VARIABLE
from pipeline.dashboard.reader import LOOK_EVERY_SECONDS, Feed, TablesReader, encoded
from pipeline.dashboard.views import Answers
from pipeline.errors import NotFound, PipelineError, UsageError
from pipeline.metrics import ReadAtScrape, new_registry
from pipeline.process import JobSigns
from pipeline.settings.model import Settings
from pipeline.web import (
    Guard,
    Listen,
    QueryRefused,
    WebServer,
    is_bearer,
    read_body,
    refuse_unguarded,
    until_gone,
    while_wanted,
)

# Metrics: requests, streams, and the age of the figures shown.

_BOUNDS_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class CountedRequests:
    """Counts requests on their way to the application, and how long each waits for the beginning of its answer.

    A path that is not of the routes, which a client made up, counts as `other`, and all below /static as /static.
    """

    def __init__(self, app: ASGIApp, registry: CollectorRegistry, routes: Iterable[str]) -> None:
        self._app = app
        self._routes = frozenset(routes)
        name, text = "kquota_dashboard_requests", "Requests, by route and status."
        self._requests = Counter(name, text, ["route", "status"], registry=registry)
        name, text = "kquota_dashboard_request_duration_seconds", "Time until an answer begins."
        self._durations = Histogram(name, text, ["route"], buckets=_BOUNDS_SECONDS, registry=registry)
        self._streams = Gauge("kquota_dashboard_streams", "Pages that follow the state now.", registry=registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a request answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, began = scope["path"], perf_counter()
        route = path if path in self._routes else "/static" if path.startswith("/static/") else "other"
        status = 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._note(route, status, perf_counter() - began)
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            if not status:  # the server answers with 500, or the client is gone
                self._note(route, 500, perf_counter() - began)
            elif route == STREAM and status == 200:
                self._streams.dec()

    def _note(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._durations.labels(route).observe(seconds)
        if route == STREAM and status == 200:
            self._streams.inc()


# The clusters of one dashboard.


class Clusters:
    """The answers about each, by name, the first one first; the others are made when they are asked for.

    For one event loop.
    """

    def __init__(self, name: str, first: Answers, others: Mapping[str, Callable[[], Answers]]) -> None:
        self.names: tuple[str, ...] = (name, *others)
        self.first = first
        self.made: dict[str, Answers] = {name: first}
        self._others = others

    def start(self) -> None:
        """Begin to read the first one."""
        self.first.feed.start()

    def end(self) -> None:
        """Ask all that were made to end. From any thread or signal handler."""
        for one in [*self.made.values()]:
            one.feed.end()

    def close(self) -> None:
        """End, and wait until they have."""
        self.end()
        for one in [*self.made.values()]:
            one.feed.close()

    def named(self, name: str | None) -> Answers:
        """The cluster of a name, None = the first; it is read from its first call on. `NotFound` for another name."""
        if name is None:
            return self.first
        if name not in self.names:
            msg = f"unknown cluster {name[:40]!r}; clusters are {', '.join(self.names)}"
            raise NotFound(msg, f"add {CLUSTER}={self.names[0]} to the address, or another of these")
        if name not in self.made:
            self.made[name] = self._others[name]()
            self.made[name].feed.start()
        return self.made[name]

    def name_in(self, parameters: Sequence[tuple[str, str]]) -> tuple[str | None, list[tuple[str, str]]]:
        """The cluster that parameters name, None = none, and the other parameters. Of one cluster alone none is taken.

        Raises:
            QueryRefused: Two are named.
        """
        if len(self.names) == 1:
            return None, [*parameters]
        given = [value for name, value in parameters if name == CLUSTER]
        if len(given) > 1:
            raise QueryRefused([f"'{CLUSTER}' is given twice"], SEE)
        return next(iter(given), None), [one for one in parameters if one[0] != CLUSTER]

    def of(self, request: Request) -> tuple[Answers, list[tuple[str, str]]]:
        """The cluster of a request, and its other parameters."""
        name, others = self.name_in(request.query_params.multi_items())
        return self.named(name), others


def _ages(clusters: Clusters, now_ms: Callable[[], int]) -> Iterator[Metric]:
    """How old what the dashboard shows is, of clusters that were looked at; what is not known is left out."""
    labels = [] if len(clusters.names) == 1 else [CLUSTER]
    look = GaugeMetricFamily(
        "kquota_dashboard_look_age_seconds", "Age of the newest look at the tables.", labels=labels
    )
    text = "How old the newest micro-batch is that was read."
    batch = GaugeMetricFamily("kquota_dashboard_batch_age_seconds", text, labels=labels)
    for name, one in [*clusters.made.items()]:
        state = one.feed.state
        if state is None:
            continue
        look_age_ms, batch_age_ms = max(now_ms() - state.now_ms, 0), state.health.last_batch_age_ms
        look.add_metric([name] * len(labels), look_age_ms / 1000)
        if batch_age_ms is not None:
            batch.add_metric([name] * len(labels), (batch_age_ms + look_age_ms) / 1000)
    yield from (family for family in (look, batch) if family.samples)


log = logging.getLogger(__name__)
STATIC: Final = Path(__file__).with_name("static")
_BEAT_SECONDS: Final = 2.0
_FIRST_SECONDS: Final = 60.0
"""How long an answer waits for the first look at the tables of its cluster: 20 s were seen on a busy machine."""
_ANSWERS_AT_ONCE: Final = 2
_KINDS: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
_STATUS: Final = {1: 500, 2: 400, 3: 404, 4: 409, 5: 422, 6: 503}
"""HTTP status by the exit code of an error."""

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


def build_app(
    clusters: Clusters,
    token: str | None = None,
    now: Callable[[], int] = wall_ms,
    registry: CollectorRegistry | None = None,
) -> Starlette:
    """Make the ASGI application.

    Args:
        token: See `Guard`; it guards the API and the metrics.
        registry: Of /metrics; the requests and the age of the figures are added. None: one of its own.
    """
    registry = CollectorRegistry() if registry is None else registry
    registry.register(ReadAtScrape(partial(_ages, clusters, now)))

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        clusters.start()
        try:
            yield
        finally:
            await run_in_threadpool(clusters.close)

    routes = [Route(path, partial(_file, "index.html")) for path in ("/", "/client", "/quotas", "/pipeline")]
    routes += [Route("/static/{name}", _static), Route("/favicon.svg", partial(_file, "favicon.svg"))]
    # Each look at the tables takes memory of its own; more at once than there are cores are no quicker. Files and
    # metrics have other threads, so that they are answered at any load.
    asked = _Asked(clusters, now, asyncio.Semaphore(_ANSWERS_AT_ONCE))
    routes += [Route(path, partial(_answered, asked, path)) for path in clusters.first.by_path()]
    routes += [Route(QUOTAS_CSV, partial(_quotas_csv, asked))]
    routes += [Route(path, partial(_posted, asked, path), methods=["POST"]) for path in clusters.first.by_posted_path()]
    routes += [Route(WHAT_IF, partial(_what_if, clusters), methods=["POST"])]
    routes += [Route(path, partial(_me, asked, token, kind)) for path, kind in zip(links.PATHS, _TEAM, strict=True)]
    routes += [Route(STREAM, partial(_stream, clusters, now)), Route(CLUSTERS, partial(_names, clusters))]
    routes += [Route("/api/v1/openapi.json", partial(_openapi, clusters))]
    routes += [Route("/access", partial(_access, token))]
    routes += [Route("/healthz", _healthz), Route("/readyz", partial(_readyz, clusters))]
    routes += [Route("/metrics", partial(_metrics, registry))]
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[
            Middleware(CountedRequests, registry=registry, routes=[route.path for route in routes]),
            # The page itself holds no data and shows the form for the token. What a link opens looks at its token.
            Middleware(Guard, token=token, is_open=lambda path: not path.startswith(("/api/", "/metrics")),
                       forbids=links.forbidden, headers=_HEADERS, refusal_page=teams.page_of_refusal),
        ],
        exception_handlers={PipelineError: _failed, HTTPException: _not_ours},
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Asked:
    """What answers of clusters need: their clock, and how many are made at once."""

    clusters: Clusters
    now: Callable[[], int]
    at_once: asyncio.Semaphore

    async def about(self, answers: Answers, make: Callable[[], bytes]) -> bytes:
        """Make an answer. Not in the event loop: a look at the tables takes milliseconds, and streams must not wait."""
        if answers.feed.state is None:
            await answers.feed.next_state(_FIRST_SECONDS)
        async with self.at_once:
            return await run_in_threadpool(make)


async def _answered(asked: _Asked, path: str, request: Request) -> Response:
    answers, parameters = asked.clusters.of(request)
    query, view = read_query(parameters, PARAMETERS[path], asked.now()), answers.by_path()[path]
    return _json(await asked.about(answers, lambda: encoded(view(query))))


async def _quotas_csv(asked: _Asked, request: Request) -> Response:
    answers, parameters = asked.clusters.of(request)
    query = read_query(parameters, PARAMETERS[QUOTAS_CSV], asked.now())
    text = await asked.about(answers, lambda: answers.as_csv(query).encode())
    headers = {"Cache-Control": "no-store", "Content-Disposition": 'attachment; filename="quotas.csv"'}
    return Response(text, media_type="text/csv", headers=headers)


async def _posted(asked: _Asked, path: str, request: Request) -> Response:
    answers, _ = asked.clusters.of(request)
    body, do = await _json_object(request), answers.by_posted_path()[path]
    return _json(await asked.about(answers, lambda: encoded(do(body))))


async def _what_if(clusters: Clusters, request: Request) -> Response:
    """Not on a thread: a replay takes long, and ends when its client goes away or the dashboard stops."""
    answers, _ = clusters.of(request)
    body, shares = await _json_object(request), asyncio.Queue[int | None]()
    replay = answers.editing.what_if(body, shares.put_nowait)
    answer = while_wanted(replay, until_gone(request.receive), _until_over(answers.feed))
    if EVENTS in request.headers.get("accept", ""):
        return _streamed(_as_events(answer, shares))
    tried = await answer
    return Response(status_code=499) if tried is None else _json(encoded(tried))


async def _as_events(
    answer: Coroutine[Any, Any, dict[str, Any] | None], shares: "asyncio.Queue[int | None]"
) -> AsyncIterator[bytes]:
    answering = asyncio.ensure_future(answer)
    answering.add_done_callback(lambda _: shares.put_nowait(None))
    try:
        while (percent := await shares.get()) is not None:
            yield _event("progress", encoded({"percent": percent}))
        if tried := await answering:
            yield _event("answer", encoded(tried))
    except PipelineError as exc:
        yield _event("error", encoded({"error": exc.message, "fix": exc.fix}))
    finally:
        answering.cancel()


def _event(name: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def _streamed(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, media_type=EVENTS, headers={"Cache-Control": "no-store"})


# What an application team sees. Its errors say nothing of the dashboard's tables.


class _TeamAnswer(NamedTuple):
    """How one of the paths is answered: what makes its text of the figures, and of a refusal."""

    kind: str
    of_figures: Callable[[Mapping[str, Any]], str]
    of_refusal: Callable[[str, str], str]


_TEAM: Final = (
    _TeamAnswer("text/html", teams.page_of_team, teams.page_of_refusal),
    _TeamAnswer("text/plain", teams.line_of_team, lambda error, fix: f"{error}. {fix}\n"),
    _TeamAnswer(
        "application/json",
        lambda found: encoded(found).decode(),
        lambda error, fix: encoded({"error": error, "fix": fix}).decode(),
    ),
)
_TEAM_PARAMETERS: Final = ("user", "client_id", "token")


async def _me(asked: _Asked, token: str | None, team: _TeamAnswer, request: Request) -> Response:
    status, text = 200, b""
    try:
        text = await _of_team(asked, token, team, request)
    except _LinkRefused as exc:
        status, refusal = exc.status, (exc.message, exc.fix)
    except (QueryRefused, NotFound) as exc:
        status, refusal = _STATUS[exc.exit_code], (exc.message, exc.fix)
    except PipelineError as exc:
        log.warning("a team's page was not answered: %s", exc)
        status, refusal = 503, ("the figures cannot be read now", "load this again in a minute")
    if status != 200:
        text = team.of_refusal(*refusal).encode()
    return Response(text, status, {"Cache-Control": "no-store"}, f"{team.kind}; charset=utf-8")


class _LinkRefused(PipelineError):
    def __init__(self, status: int, message: str, fix: str) -> None:
        self.status = status
        super().__init__(message, fix)


async def _of_team(asked: _Asked, token: str | None, team: _TeamAnswer, request: Request) -> bytes:
    name, parameters = asked.clusters.name_in(request.query_params.multi_items())
    query = read_query(parameters, _TEAM_PARAMETERS, asked.now())
    if not query.user:
        raise QueryRefused(["'user' is missing"], "open the whole link")
    about = links.About(name, query.user, query.client_id)
    if token is not None and not is_bearer(request.headers.get("authorization", "").encode("latin-1"), token):
        if query.token is None:
            raise _LinkRefused(
                401, "this page opens with a link that was made for it", "ask those who run kquota for one"
            )
        mistake = links.link_mistake(links.link_key(token), about, query.token, asked.now())
        if mistake is not None:
            raise _LinkRefused(403, *mistake)
    # Not before: only whoever may look hears which clusters there are.
    answers = asked.clusters.named(name)
    return await asked.about(answers, lambda: team.of_figures(answers.of_team(about)).encode())


async def _until_over(feed: Feed) -> None:
    while not feed.is_over:
        await feed.next_state(LOOK_EVERY_SECONDS)


async def _json_object(request: Request) -> Mapping[str, Any]:
    # No form of another site can send this type, and its scripts may not ask: an edit comes from our own page.
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        msg = "the content type is not application/json"
        raise edit_refused(msg)
    try:
        body = json.loads(await read_body(request.receive))
    except (ValueError, RecursionError) as exc:
        msg = "the body is not JSON"
        raise edit_refused(msg) from exc
    if not isinstance(body, dict):
        msg = "the body is not a JSON object"
        raise edit_refused(msg)
    return body


def _json(text: bytes, status: int = 200) -> Response:
    return Response(text, status, media_type="application/json", headers={"Cache-Control": "no-store"})


async def _stream(clusters: Clusters, now: Callable[[], int], request: Request) -> Response:
    answers, parameters = clusters.of(request)
    query, feed = read_query(parameters, PARAMETERS[STREAM], now()), answers.feed
    whole = query.view == "now"

    async def events() -> AsyncIterator[bytes]:
        yield b"retry: 1000\n\n"
        sent = -1
        beat = 0.0
        while not feed.is_over:
            state = feed.state
            if state is not None and (state.seq != sent or beat <= 0):
                sent, beat = state.seq, _BEAT_SECONDS
                yield _event("state", feed.text(whole))
            await feed.next_state(_BEAT_SECONDS)
            beat -= LOOK_EVERY_SECONDS

    return _streamed(events())


async def _static(request: Request) -> Response:
    return await _file(request.path_params["name"], request)


async def _file(name: str, _request: Request) -> Response:
    path = STATIC / name
    if path.parent != STATIC or path.suffix not in _KINDS or not path.is_file():
        raise HTTPException(404)
    return FileResponse(path, media_type=_KINDS[path.suffix], headers={"Cache-Control": "no-cache"})


async def _openapi(clusters: Clusters, _request: Request) -> Response:
    return _json(encoded(document(clusters.names)))


async def _names(clusters: Clusters, request: Request) -> Response:
    read_query(clusters.name_in(request.query_params.multi_items())[1], PARAMETERS[CLUSTERS], 0)
    return _json(encoded({"clusters": clusters.names}))


async def _access(token: str | None, request: Request) -> Response:
    """Not with 401: the page asks before it has a token, and browsers log each 401 as an error."""
    given = request.headers.get("authorization", "").encode("latin-1")
    return _json(encoded({"accepted": token is None or is_bearer(given, token)}))


async def _healthz(_request: Request) -> Response:
    return _json(encoded({"status": "ok"}))


async def _readyz(clusters: Clusters, _request: Request) -> Response:
    state = clusters.first.feed.state
    if state is None or state.health.state == "unreadable":
        return _json(encoded({"status": "not ready", "why": "" if state is None else state.health.text}), 503)
    return _json(encoded({"status": "ready", "health": state.health.state}))


async def _metrics(registry: CollectorRegistry, _request: Request) -> Response:
    text = await run_in_threadpool(generate_latest, registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


async def _failed(_request: Request, exc: Any) -> Response:
    return _json(encoded({"error": exc.message, "fix": exc.fix}), _STATUS.get(exc.exit_code, 500))


async def _not_ours(request: Request, exc: Any) -> Response:
    path = request.url.path
    if exc.status_code == 404 and not path.startswith("/api/") and "text/html" in request.headers.get("accept", ""):
        # The page has a sentence for it, and a link.
        return FileResponse(STATIC / "index.html", 404, media_type=_KINDS[".html"])
    return _json(encoded({"error": f"not found: {request.method} {request.url.path}", "fix": SEE}), exc.status_code)


# The server: all parts, on one socket.

_FINISH_SECONDS: Final = 2
_MOST_CONNECTIONS: Final = 256


class DashboardServer(WebServer):
    """One listening socket in front of the application.

    Args:
        name: Of this cluster, where there are others.
        others: Of further clusters, by name, the settings and what is known of the job. They are read when asked for.

    Raises:
        UsageError: Edits are allowed, and there is no token.
        ListenRefused: Other machines could connect without a token, or the system does not let it listen there.
    """

    def __init__(
        self,
        settings: Settings,
        signs: JobSigns,
        listen: Listen,
        token: str | None,
        may_write: bool = False,
        name: str = "",
        others: Mapping[str, tuple[Settings, JobSigns]] = MappingProxyType({}),
    ) -> None:
        refuse_unguarded(listen, token, TOKEN_VARIABLE)
        if may_write and token is None:
            msg = "--allow-edits needs a token, so that only those who have it can edit quotas"
            raise UsageError(msg, f"give --token-file or {TOKEN_VARIABLE}, or leave out --allow-edits")
        made_later = {other: partial(_answers, *of_other, may_write) for other, of_other in others.items()}
        self._clusters = Clusters(name, _answers(settings, signs, may_write), made_later)
        app, most = build_app(self._clusters, token, registry=new_registry("dashboard")), _MOST_CONNECTIONS
        super().__init__(app, listen, lifespan="on", finish_seconds=_FINISH_SECONDS, most_connections=most)

    def stop(self) -> None:
        """Make `run` return, and end the streams and a running what-if. From any thread or signal handler."""
        self._clusters.end()
        super().stop()


def _answers(settings: Settings, signs: JobSigns, may_write: bool) -> Answers:
    reader = TablesReader(settings.tables.root, signs, settings.scope, settings.purgatory.min_hold_ms)
    return Answers(reader, Feed(reader), settings, may_write)
