"""The gate over HTTP, for services in any language: is this client throttled, until when and why?

    GET /v1/throttle?user=alice&client_id=etl              200 {"throttled": false} or 429 with Retry-After
    GET /v1/throttle?user=alice&client_id=etl&wait_ms=5000 the same, after waiting in the gate for up to 5 s
    GET /v1/throttles                                      200, all throttles that run now
    GET /healthz                                           200 {"status": "ok" | "catching-up" | "stale"}
    GET /metrics                                           200, Prometheus' text format

Health is 200 in all three states: the gate fails open, so no state is a reason to take a service out of rotation.
Mistakes are answered with 400 (401, 404, 405) and {"error": …, "remedy": …}.
"""

import asyncio
import hmac
from contextlib import suppress
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.gate.errors import GateDepleted, GateTimeout
from pipeline.gate.gate import Gate, Throttled
from pipeline.gate.query import QueryRefused, ThrottleQuery, read_query

# What one waiting request costs this process, roughly: a connection, a task, a waiting caller. Charged to the pool.
LONG_POLL_BYTES: Final = 16_384

_STATUS: Final = {"following": "ok", "connecting": "catching-up", "catching-up": "catching-up"}


def build_app(gate: Gate, token: str | None = None, registry: CollectorRegistry | None = None) -> Starlette:
    """Make the ASGI application.

    Args:
        gate: Started. The application does not close it.
        token: Requests must carry it as `Authorization: Bearer …`, except for /healthz; None: no token is needed.
        registry: What /metrics tells; None: there is no /metrics. How often throttles were asked for is added to it.
    """
    answers = _answer_counter(registry)

    async def throttle(request: Request) -> Response:
        query = read_query(request.query_params.multi_items())
        if query.wait_ms:
            await _wait_or_disconnect(gate, query, request)
        throttled = gate.throttle_of(query.user, query.client_id, query.broker_id)
        answers.labels("go" if throttled is None else "throttled").inc()
        if throttled is None:
            return JSONResponse({"throttled": False})
        retry_after_seconds = max(-(-throttled.remaining_ms // 1000), 1)
        return JSONResponse(as_json(throttled), 429, {"Retry-After": str(retry_after_seconds)})

    async def throttles(_request: Request) -> Response:
        return JSONResponse({"throttles": [as_json(throttled) for throttled in gate.throttles()]})

    async def healthz(_request: Request) -> Response:
        return JSONResponse({"status": _STATUS.get(gate.state, "stale"), "state": gate.state})

    app = Starlette(
        routes=[
            Route("/v1/throttle", throttle),
            Route("/v1/throttles", throttles),
            Route("/healthz", healthz),
            *([] if registry is None else [_metrics_route(registry)]),
        ],
        exception_handlers={QueryRefused: _refused, HTTPException: _not_ours},
    )
    if token is not None:
        app.add_middleware(_BearerToken, token=token)
    return app


def _metrics_route(registry: CollectorRegistry) -> Route:
    async def metrics(_request: Request) -> Response:
        # On a thread: the gauges take the gate's locks.
        text = await run_in_threadpool(generate_latest, registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return Route("/metrics", metrics)


def _answer_counter(registry: CollectorRegistry | None) -> Counter:
    answers = Counter("kquota_gate_answers", "Answers to /v1/throttle.", ("answer",), registry=registry)
    for answer in ("go", "throttled"):
        answers.labels(answer)
    return answers


def as_json(throttled: Throttled) -> dict[str, Any]:
    """A running throttle as the answers show it; O, T and W by their full names."""
    record = throttled.record
    elapsed_ms = record.throttle_time_ms - throttled.remaining_ms
    return {
        "throttled": True,
        "user": record.user,
        "client_id": record.client_id,
        "broker_id": record.broker_id,
        "throttled_until_ms": record.throttled_until_ms,
        "remaining_ms": throttled.remaining_ms,
        # A throttle may be shorter than what the client owes. The rest comes as a renewal.
        "owed_ms": max(record.owed_ms - elapsed_ms, throttled.remaining_ms),
        "reason": {
            "quota_type": record.quota_type,
            "observed": record.observed,
            "bound": record.bound,
            "window_ms": record.window_ms,
            "cause": record.cause,
            "decision_id": record.decision_id,
        },
    }


async def _wait_or_disconnect(gate: Gate, query: ThrottleQuery, request: Request) -> None:
    """Wait until the client may go on, the time is up, the connection is gone, or the gate's pool is depleted."""
    waiting = asyncio.ensure_future(_wait_in_gate(gate, query))
    gone = asyncio.ensure_future(_until_gone(request))
    try:
        await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (waiting, gone):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await waiting


async def _wait_in_gate(gate: Gate, query: ThrottleQuery) -> None:
    with suppress(GateDepleted, GateTimeout):
        async with gate.acquire_async(
            query.user,
            query.client_id,
            broker_id=query.broker_id,
            request_bytes=LONG_POLL_BYTES,
            timeout_ms=query.wait_ms,
        ):
            pass


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _BearerToken:
    """Lets requests through that carry the token. /healthz needs none, because probes often can not send one."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/healthz":
            given = Headers(scope=scope).get("authorization", "").encode()
            if not hmac.compare_digest(given, self._wanted):
                what = "another one" if given else "none"
                answer = _error(401, f"'Authorization' must carry the gate's token; got {what}", "send Bearer <token>")
                answer.headers["WWW-Authenticate"] = "Bearer"
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _refused(_request: Request, exc: Exception) -> Response:
    return _error(400, str(exc), "GET /v1/throttle?user=NAME&client_id=NAME&wait_ms=MILLISECONDS")


async def _not_ours(request: Request, exc: Exception) -> Response:
    status = exc.status_code if isinstance(exc, HTTPException) else 500
    what = f"'request' must be one this gate answers; got {request.method} {request.url.path}"
    return _error(status, what, "GET /v1/throttle, /v1/throttles or /healthz")


def _error(status: int, error: str, remedy: str) -> JSONResponse:
    return JSONResponse({"error": error, "remedy": remedy}, status)
