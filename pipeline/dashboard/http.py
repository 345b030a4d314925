"""The dashboard over HTTP: the page, its JSON API, and one stream of what is new.

    GET /, /client, /quotas, /pipeline    the page
    GET /api/v1/…                         see /api/v1/openapi.json
    POST /api/v1/quotas/…                 a candidate: planned, tried, and with --allow-edits made
    GET /api/v1/stream                    server-sent events: the state, at once and whenever it has changed
    GET /metrics                          Prometheus' text format
    GET /healthz                          200 while the process works
    GET /readyz                           200 once the tables can be read, else 503

Mistakes are answered with 400 (401, 404, 405, 421) and {"error": …, "remedy": …}.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pipeline.clock import wall_ms
from pipeline.dashboard.api import Answers
from pipeline.dashboard.editing import Editing
from pipeline.dashboard.errors import EditRefused
from pipeline.dashboard.feed import LOOK_EVERY_SECONDS, Feed, encoded
from pipeline.dashboard.metrics import STREAM, CountedRequests, tell_age
from pipeline.dashboard.openapi import PARAMETERS, WHAT_IF, document
from pipeline.dashboard.query import Query, read_query
from pipeline.errors import PipelineError
from pipeline.web import Guard, read_body, until_gone, while_wanted

STATIC: Final = Path(__file__).with_name("static")
_PAGES: Final = ("/", "/client", "/quotas", "/pipeline")
_BEAT_SECONDS: Final = 2.0
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

Answer = Callable[[Request], Awaitable[Response]]


def build_app(
    feed: Feed,
    answers: Answers,
    token: str | None = None,
    now: Callable[[], int] = wall_ms,
    registry: CollectorRegistry | None = None,
) -> Starlette:
    """Make the ASGI application.

    Args:
        feed: Started when the application starts, closed when it ends.
        answers: What the API says.
        token: Requests to the API must carry it as `Authorization: Bearer …`; None: no token is needed.
        now: The wall clock.
        registry: What /metrics tells, to which the requests and the age of what is shown are added; None: one of its
            own.
    """
    registry = CollectorRegistry() if registry is None else registry
    tell_age(registry, feed, now)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        feed.start()
        try:
            yield
        finally:
            await run_in_threadpool(feed.close)

    routes = [Route(path, _page) for path in _PAGES]
    routes += [Route("/static/{name}", _static), Route("/favicon.svg", partial(_file, "favicon.svg"))]
    # Each look at the tables takes memory of its own; more at once than there are cores are no quicker. Files and
    # metrics have other threads, so that they are answered at any load.
    at_once = asyncio.Semaphore(_ANSWERS_AT_ONCE)
    routes += [Route(path, _answered(path, say, now, at_once)) for path, say in answers.by_path().items()]
    routes += [Route(path, _posted(do, at_once), methods=["POST"]) for path, do in answers.by_posted_path().items()]
    routes += [Route(WHAT_IF, partial(_what_if, answers.editing, feed), methods=["POST"])]
    routes += [
        Route(STREAM, partial(_stream, feed, now)),
        Route("/api/v1/openapi.json", _openapi),
        Route("/healthz", _healthz),
        Route("/readyz", partial(_readyz, feed)),
        Route("/metrics", partial(_metrics, registry)),
    ]
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[
            Middleware(CountedRequests, registry=registry, routes=[route.path for route in routes]),
            Middleware(Guard, token=token, is_open=_needs_no_token, headers=_HEADERS),
        ],
        exception_handlers={PipelineError: _failed, HTTPException: _not_ours},
    )


def _needs_no_token(path: str) -> bool:
    """The page itself holds no data and asks for the token."""
    return not path.startswith("/api/") and path != "/metrics"


def _answered(path: str, say: Callable[[Query], Any], now: Callable[[], int], at_once: asyncio.Semaphore) -> Answer:
    async def answer(request: Request) -> Response:
        query = read_query(request.query_params.multi_items(), PARAMETERS[path], now())
        # Not in the event loop: a look at the tables takes milliseconds, and the stream must go on.
        async with at_once:
            return _said(await run_in_threadpool(lambda: encoded(say(query))))

    return answer


def _posted(do: Callable[[Mapping[str, Any]], Any], at_once: asyncio.Semaphore) -> Answer:
    async def answer(request: Request) -> Response:
        body = await _json_object(request)
        async with at_once:
            return _said(await run_in_threadpool(lambda: encoded(do(body))))

    return answer


async def _what_if(editing: Editing, feed: Feed, request: Request) -> Response:
    """Not on a thread: a replay takes long, and ends when its client goes away or the dashboard stops."""
    body = await _json_object(request)
    tried = await while_wanted(editing.what_if(body), until_gone(request.receive), _until_over(feed))
    return Response(status_code=499) if tried is None else _said(encoded(tried))


async def _until_over(feed: Feed) -> None:
    while not feed.is_over:
        await feed.next_state(LOOK_EVERY_SECONDS)


async def _json_object(request: Request) -> Mapping[str, Any]:
    # No form of another site can send this type, and its scripts may not ask: an edit comes from our own page.
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        msg = "'Content-Type' must be application/json"
        raise EditRefused(msg)
    try:
        body = json.loads(await read_body(request.receive))
    except (ValueError, RecursionError) as exc:
        msg = "the body must be JSON"
        raise EditRefused(msg) from exc
    if not isinstance(body, dict):
        msg = "the body must be a JSON object"
        raise EditRefused(msg)
    return body


def _said(text: bytes) -> Response:
    return Response(text, media_type="application/json", headers={"Cache-Control": "no-store"})


async def _stream(feed: Feed, now: Callable[[], int], request: Request) -> Response:
    query = read_query(request.query_params.multi_items(), PARAMETERS[STREAM], now())
    whole = query.view == "now"

    async def events() -> AsyncIterator[bytes]:
        yield b"retry: 1000\n\n"
        told = -1
        beat = 0.0
        while not feed.is_over:
            state = feed.state
            if state is not None and (state.seq != told or beat <= 0):
                told, beat = state.seq, _BEAT_SECONDS
                yield b"event: state\ndata: " + feed.text(whole) + b"\n\n"
            await feed.next_state(_BEAT_SECONDS)
            beat -= LOOK_EVERY_SECONDS

    return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _page(_request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


async def _static(request: Request) -> Response:
    return await _file(request.path_params["name"], request)


async def _file(name: str, _request: Request) -> Response:
    path = STATIC / name
    if path.parent != STATIC or path.suffix not in _KINDS or not path.is_file():
        raise HTTPException(404)
    return FileResponse(path, media_type=_KINDS[path.suffix], headers={"Cache-Control": "no-cache"})


async def _openapi(_request: Request) -> Response:
    return JSONResponse(document())


async def _healthz(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _readyz(feed: Feed, _request: Request) -> Response:
    state = feed.state
    if state is None or state.health.state == "unreadable":
        return JSONResponse({"status": "not ready", "why": "" if state is None else state.health.text}, 503)
    return JSONResponse({"status": "ready", "health": state.health.state})


async def _metrics(registry: CollectorRegistry, _request: Request) -> Response:
    text = await run_in_threadpool(generate_latest, registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


async def _failed(_request: Request, exc: Exception) -> Response:
    if not isinstance(exc, PipelineError):
        return refused(500, "the dashboard failed", "see its log")
    return refused(_STATUS.get(exc.exit_code, 500), exc.message, exc.remedy)


async def _not_ours(request: Request, exc: Exception) -> Response:
    status = exc.status_code if isinstance(exc, HTTPException) else 500
    what = f"'request' must be one this dashboard answers; got {request.method} {request.url.path}"
    return refused(status, what, "see /api/v1/openapi.json")


def refused(status: int, error: str, remedy: str) -> JSONResponse:
    """The answer to a request that can not be answered."""
    return JSONResponse({"error": error, "remedy": remedy}, status)
