"""The gate as a side-car over HTTP, for services in any language: is this client throttled, until when and why?

    GET /v1/throttle?user=alice&client_id=etl              200 {"throttled": false} or 429 with Retry-After
    GET /v1/throttle?user=alice&client_id=etl&wait_ms=5000 the same, after waiting in the gate for up to 5 s
    GET /v1/throttles                                      200, all throttles that run now
    GET /healthz                                           200 {"status": "ok" | "catching-up" | "stale"}
    GET /metrics                                           200, Prometheus' text format

Health is 200 in all three states: the gate fails open, so no state is a reason to take a service out of rotation.
Mistakes are answered with 400 (401, 404, 405, 421) and {"error": …, "fix": …}.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any, Final, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipeline.gate.gate import Gate, GateTimeout, Throttled
from pipeline.gate.waiting_room import GateDepleted
from pipeline.web import (
    Guard,
    Listen,
    QueryRefused,
    Read,
    WebServer,
    read_parameters,
    refuse_unguarded,
    until_gone,
    while_wanted,
    whole_number,
)

# What one waiting request costs this process, roughly: a connection, a task, a waiting caller. Charged to the pool.
LONG_POLL_BYTES: Final = 16_384

MAX_WAIT_MS: Final = 60_000
_USAGE: Final = "GET /v1/throttle?user=NAME&client_id=NAME&wait_ms=MILLISECONDS"
_STATUS: Final = {"following": "ok", "connecting": "catching-up", "catching-up": "catching-up"}


def build_app(gate: Gate, token: str | None = None, registry: CollectorRegistry | None = None) -> Starlette:
    """Make the ASGI application.

    Args:
        token: Requests must carry it as `Authorization: Bearer …`, except for /healthz; None: no token is needed, and
            only names of this machine are answered.
        registry: Of /metrics; None: no /metrics. The number of requests for throttles is added to it.
    """
    answers = _answer_counter(registry)

    async def throttle(request: Request) -> Response:
        query = read_query(request.query_params.multi_items())
        if query.wait_ms:
            # Until the client may pass, the time is up, the connection is gone, or the gate's pool is depleted.
            await while_wanted(_wait_in_gate(gate, query), until_gone(request.receive))
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

    return Starlette(
        routes=[
            Route("/v1/throttle", throttle),
            Route("/v1/throttles", throttles),
            Route("/healthz", healthz),
            *([] if registry is None else [_metrics_route(registry)]),
        ],
        middleware=[Middleware(Guard, token=token)],
        exception_handlers={QueryRefused: _refused, HTTPException: _not_ours},
    )


class ThrottleQuery(NamedTuple):
    """The client of a request.

    Attributes:
        user: Not empty.
        client_id: "" if the client has none.
        broker_id: "" means only throttles of the whole cluster count.
        wait_ms: How long the answer may wait while the client is throttled, 0 to `MAX_WAIT_MS`.
    """

    user: str
    client_id: str = ""
    broker_id: str = ""
    wait_ms: int = 0


def read_query(parameters: Sequence[tuple[str, str]]) -> ThrottleQuery:
    """Read the parameters of `GET /v1/throttle`.

    Raises:
        QueryRefused: See `pipeline.web.read_parameters`.
    """
    return ThrottleQuery(**read_parameters(parameters, _KNOWN, _USAGE, required=("user",)))


def _not_empty(text: str) -> str:
    if not text:
        msg = "'user' is empty"
        raise ValueError(msg)
    return text


_KNOWN: Final[Mapping[str, Read]] = {
    "user": _not_empty,
    "client_id": str,
    "broker_id": str,
    "wait_ms": whole_number("wait_ms", 0, MAX_WAIT_MS),
}


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


async def _refused(_request: Request, exc: Exception) -> Response:
    return _error(400, exc.message if isinstance(exc, QueryRefused) else str(exc), _USAGE)


async def _not_ours(request: Request, exc: Exception) -> Response:
    status = exc.status_code if isinstance(exc, HTTPException) else 500
    what = f"not found: {request.method} {request.url.path}"
    return _error(status, what, "GET /v1/throttle, /v1/throttles or /healthz")


def _error(status: int, error: str, fix: str) -> JSONResponse:
    return JSONResponse({"error": error, "fix": fix}, status)


# The server.

TOKEN_VARIABLE: Final = "KQUOTA_GATE_TOKEN"  # noqa: S105 - the name of a variable
_FINISH_SECONDS: Final = 5


class GateServer:
    """One listening socket in front of a gate.

    Args:
        gate: Started. `run` closes it at the end.
        token: See `pipeline.gate.http.build_app`.

    Raises:
        ListenRefused: Other machines could connect without a token, or the system does not let it listen there.
    """

    def __init__(
        self, gate: Gate, listen: Listen, token: str | None, registry: CollectorRegistry | None = None
    ) -> None:
        refuse_unguarded(listen, token, TOKEN_VARIABLE)
        self._server = WebServer(build_app(gate, token, registry), listen, finish_seconds=_FINISH_SECONDS)
        self._closing = Thread(target=gate.close, args=(1.0,), name="gate-closing")

    @property
    def port(self) -> int:
        """The port in use."""
        return self._server.port

    def run(self) -> None:
        """Answer requests until `stop`. Returns when all waiting requests have been answered, or after 5 s."""
        try:
            self._server.run()
        finally:
            self.stop()
            self._closing.join()

    def stop(self) -> None:
        """Answer the waiting requests and make `run` return. From any thread or signal handler; may be repeated."""
        self._server.stop()
        if self._closing.ident is None:
            self._closing.start()


# Metrics, read from the gauges of the gate at each scrape.


def gate_metrics(gate: Gate, clients: bool = False) -> Iterable[Metric]:
    """The gauges of a gate, now.

    Args:
        clients: Also how much longer each throttled client must wait, a series for each.
    """
    stats = gate.stats()
    occupancy, depleted_ratio = stats.occupancy, stats.occupancy.pool_depleted_percent / 100
    states = ("connecting", "catching-up", "following", "stale", "closed")
    state = GaugeMetricFamily("kquota_gate_state", "1 for the state that the gate is in.", labels=["state"])
    for name in states:
        state.add_metric([name], float(name == stats.state))
    yield state
    yield CounterMetricFamily("kquota_gate_unreadable_records", "Records that were skipped.", stats.unreadable)
    for name, documentation, value in (
        ("purgatory_size", "Entries of the watch lists.", occupancy.purgatory_size),
        ("delayed_operations", "Callers that wait for a time-out.", occupancy.delayed_operations),
        ("waiting_callers", "Callers that wait.", occupancy.waiting),
        ("waiting_for_memory", "Callers that wait for bytes of the pool.", occupancy.waiting_for_memory),
        ("throttled_clients", "Throttles that run.", occupancy.throttled_clients),
        ("pool_size_bytes", "Size of the memory pool.", occupancy.pool_size_bytes),
        ("pool_available_bytes", "What is left of the memory pool.", occupancy.pool_available_bytes),
        ("pool_used_bytes", "Bytes of waiting requests.", occupancy.pool_used_bytes),
        ("pool_depleted_ratio", "Share of the last minute in which the pool refused.", depleted_ratio),
    ):
        yield GaugeMetricFamily(f"kquota_gate_{name}", documentation, value)
    if clients:
        remaining = GaugeMetricFamily(
            "kquota_gate_client_remaining_seconds",
            "How much longer a client must wait.",
            labels=["user", "client_id", "broker_id"],
        )
        for throttled in gate.throttles():
            record = throttled.record
            remaining.add_metric([record.user, record.client_id, record.broker_id], throttled.remaining_ms / 1000)
        yield remaining
