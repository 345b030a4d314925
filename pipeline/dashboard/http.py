"""The dashboard over HTTP: the page, its JSON API, one stream of new states, its metrics, and the server.

    GET /, /client, /quotas, /pipeline    the page
    GET /access                           whether the token of this request, or none, opens the API
    GET /api/v1/…                         the views as JSON, see `api`
    GET /api/v1/stream                    server-sent events: the state, at once and whenever it changes
    GET /metrics                          Prometheus' text format
    GET /healthz                          200 while the process works
    GET /readyz                           200 once the tables can be read, else 503

Mistakes are answered with 400 (401, 404, 405, 421) and {"error": …, "fix": …}.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final

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
from pipeline.dashboard.api import PARAMETERS, QUOTAS_CSV, SEE, STREAM, Query, read_query
from pipeline.dashboard.reader import LOOK_EVERY_SECONDS, Feed, TablesReader, encoded
from pipeline.dashboard.views import Answers
from pipeline.errors import PipelineError
from pipeline.metrics import ReadAtScrape, new_registry
from pipeline.process import JobSigns
from pipeline.settings.model import Settings
from pipeline.web import Guard, Listen, WebServer, is_bearer, refuse_unguarded

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


def _ages(feed: Feed, now_ms: Callable[[], int]) -> Iterator[Metric]:
    """How old what the dashboard shows is; what is not known is left out."""
    state = feed.state
    if state is None:
        return
    look_age_ms, batch_age_ms = max(now_ms() - state.now_ms, 0), state.health.last_batch_age_ms
    text = "Age of the newest look at the tables."
    yield GaugeMetricFamily("kquota_dashboard_look_age_seconds", text, look_age_ms / 1000)
    if batch_age_ms is not None:
        text = "How old the newest micro-batch is that was read."
        yield GaugeMetricFamily("kquota_dashboard_batch_age_seconds", text, (batch_age_ms + look_age_ms) / 1000)


TOKEN_VARIABLE: Final = "KQUOTA_DASHBOARD_TOKEN"  # noqa: S105 - its name
STATIC: Final = Path(__file__).with_name("static")
_BEAT_SECONDS: Final = 2.0
_FIRST_SECONDS: Final = 60.0
"""How long an answer waits for the first look at the tables: 20 s were seen on a busy machine."""
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
    answers: Answers,
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
    registry.register(ReadAtScrape(partial(_ages, answers.feed, now)))

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        answers.feed.start()
        try:
            yield
        finally:
            await run_in_threadpool(answers.feed.close)

    routes = [Route(path, partial(_file, "index.html")) for path in ("/", "/client", "/quotas", "/pipeline")]
    routes += [Route("/static/{name}", _static), Route("/favicon.svg", partial(_file, "favicon.svg"))]
    # Each look at the tables takes memory of its own; more at once than there are cores are no quicker. Files and
    # metrics have other threads, so that they are answered at any load.
    asked = _Asked(answers, asyncio.Semaphore(_ANSWERS_AT_ONCE))
    routes += [Route(path, partial(_answered, asked, path)) for path in answers.by_path()]
    routes += [Route(QUOTAS_CSV, partial(_quotas_csv, asked))]
    routes += [Route(STREAM, partial(_stream, answers.feed)), Route("/access", partial(_access, token))]
    routes += [Route("/healthz", _healthz), Route("/readyz", partial(_readyz, answers.feed))]
    routes += [Route("/metrics", partial(_metrics, registry))]
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[
            Middleware(CountedRequests, registry=registry, routes=[route.path for route in routes]),
            # The page itself holds no data and shows the form for the token.
            Middleware(Guard, token=token, is_open=_is_open, headers=_HEADERS),
        ],
        exception_handlers={PipelineError: _failed, HTTPException: _not_ours},
    )


def _is_open(path: str) -> bool:
    return not path.startswith(("/api/", "/metrics"))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What answers, and how many answers are made at once."""

    answers: Answers
    at_once: asyncio.Semaphore

    async def made(self, make: Callable[[], bytes]) -> bytes:
        """Make an answer. Not in the event loop: a look at the tables takes milliseconds, and streams must not wait."""
        if self.answers.feed.state is None:
            await self.answers.feed.next_state(_FIRST_SECONDS)
        async with self.at_once:
            return await run_in_threadpool(make)


async def _answered(asked: _Asked, path: str, request: Request) -> Response:
    query, view = _query(request, path), asked.answers.by_path()[path]
    return _json(await asked.made(lambda: encoded(view(query))))


def _query(request: Request, path: str) -> Query:
    return read_query(request.query_params.multi_items(), PARAMETERS[path])


async def _quotas_csv(asked: _Asked, request: Request) -> Response:
    query = _query(request, QUOTAS_CSV)
    text = await asked.made(lambda: asked.answers.as_csv(query).encode())
    headers = {"Cache-Control": "no-store", "Content-Disposition": 'attachment; filename="quotas.csv"'}
    return Response(text, media_type="text/csv", headers=headers)


def _json(text: bytes, status: int = 200) -> Response:
    return Response(text, status, media_type="application/json", headers={"Cache-Control": "no-store"})


async def _stream(feed: Feed, request: Request) -> Response:
    whole = _query(request, STREAM).view == "now"

    async def events() -> AsyncIterator[bytes]:
        yield b"retry: 1000\n\n"
        sent = -1
        beat = 0.0
        while not feed.is_over:
            state = feed.state
            if state is not None and (state.seq != sent or beat <= 0):
                sent, beat = state.seq, _BEAT_SECONDS
                yield b"event: state\ndata: %b\n\n" % feed.text(whole)
            await feed.next_state(_BEAT_SECONDS)
            beat -= LOOK_EVERY_SECONDS

    return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


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

    Raises:
        ListenRefused: Other machines could connect without a token, or the system does not let it listen there.
    """

    def __init__(self, settings: Settings, signs: JobSigns, listen: Listen, token: str | None) -> None:
        refuse_unguarded(listen, token, TOKEN_VARIABLE)
        reader = TablesReader(settings.tables.root, signs, settings.scope, settings.purgatory.min_hold_ms)
        self._feed = Feed(reader)
        answers = Answers(reader, self._feed, settings)
        app, most = build_app(answers, token, registry=new_registry("dashboard")), _MOST_CONNECTIONS
        super().__init__(app, listen, lifespan="on", finish_seconds=_FINISH_SECONDS, most_connections=most)

    def stop(self) -> None:
        """Make `run` return, and end the streams. From any thread or signal handler."""
        self._feed.end()
        super().stop()
