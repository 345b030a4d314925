"""The dashboard over HTTP: the page, its JSON API, and the server.

    GET /, /client, /quotas, /pipeline    the page
    GET /access                           whether the token of this request, or none, opens the API
    GET /api/v1/…                         the views as JSON, see `views`
    GET /healthz                          200 while the process works
    GET /readyz                           200 once the tables can be read, else 503

Mistakes are answered with 400 (401, 404, 405, 421) and {"error": …, "fix": …}.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from pipeline.dashboard.client import SEE
from pipeline.dashboard.reader import Feed, TablesReader, encoded
from pipeline.dashboard.views import PARAMETERS, Answers, View, read_query
from pipeline.job.status import JobSigns
from pipeline.settings.model import Settings
from pipeline.web import (
    Guard,
    Listen,
    WebServer,
    error_handlers,
    is_bearer,
    refuse_unguarded,
)

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
    routes += [Route("/access", partial(_access, token))]
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
