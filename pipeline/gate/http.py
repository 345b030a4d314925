"""The gate as a side-car over HTTP, for services in any language: is this client throttled, until when and why?

    GET /v1/throttle?user=alice&client_id=etl              200 {"throttled": false} or 429 with Retry-After
    GET /v1/throttle?user=alice&client_id=etl&wait_ms=5000 the same, after waiting in the gate for up to 5 s
    GET /v1/throttles                                      200, all throttles that run now
    GET /healthz                                           200 {"status": "ok" | "catching-up" | "stale"}
    GET /metrics                                           200, Prometheus' text format

Health is 200 in all three states: the gate fails open, so no state is a reason to take a service out of rotation.
Mistakes are answered with 400 (401, 404, 405, 421) and {"error": …, "fix": …}.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from threading import Thread
from typing import Annotated, Any, Final, get_args

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipeline.gate.follower import FollowerState
from pipeline.gate.gate import Gate, GateTimeout, Throttled
from pipeline.gate.waiting_room import GateDepleted
from pipeline.web import (
    Answer,
    Guard,
    Listen,
    WebServer,
    error_handlers,
    metrics_route,
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
    """Make the ASGI application, with /metrics of a registry; the number of requests for throttles is added to it."""
    answers = Counter("kquota_gate_answers", "Answers to /v1/throttle.", ("answer",), registry=registry)
    go, stop = answers.labels("go"), answers.labels("throttled")

    async def throttle(request: Request) -> Response:
        query = read_query(request.query_params.multi_items())
        if query.wait_ms:
            # Until the client may pass, the time is up, the connection is gone, or the gate's pool is depleted.
            await while_wanted(_wait_in_gate(gate, query), until_gone(request.receive))
        throttled = gate.throttle_of(query.user, query.client_id, query.broker_id)
        (go if throttled is None else stop).inc()
        if throttled is None:
            return Answer({"throttled": False})
        retry_after_seconds = max(-(-throttled.remaining_ms // 1000), 1)
        return Answer(as_json(throttled), 429, {"Retry-After": str(retry_after_seconds)})

    async def throttles(_request: Request) -> Response:
        running = [{**as_json(each), "except_client_ids": each.record.except_client_ids} for each in gate.throttles()]
        return Answer({"throttles": running})

    async def healthz(_request: Request) -> Response:
        return Answer({"status": _STATUS.get(gate.state, "stale"), "state": gate.state})

    routes = [Route("/v1/throttle", throttle), Route("/v1/throttles", throttles), Route("/healthz", healthz)]
    if registry is not None:
        routes.append(metrics_route(registry))
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, token=token)],
        exception_handlers=error_handlers("GET /v1/throttle, /v1/throttles or /healthz"),
    )


def _not_empty(text: str) -> str:
    if not text:
        msg = "'user' is empty"
        raise ValueError(msg)
    return text


class ThrottleQuery(BaseModel):
    """The client of a request, and how long the answer may wait. A broker of "" is the whole cluster."""

    model_config = ConfigDict(frozen=True)

    user: Annotated[str, AfterValidator(_not_empty)]
    client_id: str = ""
    broker_id: str = ""
    wait_ms: Annotated[int, BeforeValidator(whole_number("wait_ms", 0, MAX_WAIT_MS))] = 0


def read_query(parameters: Sequence[tuple[str, str]]) -> ThrottleQuery:
    """Read the parameters of `GET /v1/throttle`. Raises `QueryRefused` as `pipeline.web.read_parameters`."""
    return read_parameters(parameters, ThrottleQuery, _USAGE, tuple(ThrottleQuery.model_fields))


def as_json(throttled: Throttled) -> dict[str, Any]:
    """A running throttle as the answers show it; O, T and W by their full names.

    It has the names of its target: `client_id` is null in the throttle of all client-ids of a user.
    """
    record = throttled.record
    elapsed_ms = record.throttle_time_ms - throttled.remaining_ms
    reason = ("quota_type", "observed", "bound", "window_ms", "cause", "decision_id")
    return {
        "throttled": True,
        **{name: getattr(record, name) for name in ("user", "client_id", "broker_id")},
        "throttled_until_ms": record.throttled_until_ms,
        "remaining_ms": throttled.remaining_ms,
        # A throttle may be shorter than what the client owes. The rest comes as a renewal.
        "owed_ms": max(record.owed_ms - elapsed_ms, throttled.remaining_ms),
        "reason": {name: getattr(record, name) for name in reason},
    }


async def _wait_in_gate(gate: Gate, query: ThrottleQuery) -> None:
    with suppress(GateDepleted, GateTimeout):
        client = query.model_dump(include={"user", "client_id", "broker_id"})
        async with gate.acquire_async(**client, request_bytes=LONG_POLL_BYTES, timeout_ms=query.wait_ms):
            pass


# The server.

TOKEN_VARIABLE: Final = "KQUOTA_GATE_TOKEN"  # noqa: S105 - the name of a variable
_FINISH_SECONDS: Final = 5


class GateServer(WebServer):
    """One listening socket in front of a gate that is started. `run` closes it at the end.

    Raises:
        ListenRefused: Other machines could connect without a token, or the system does not let it listen there.
    """

    def __init__(
        self, gate: Gate, listen: Listen, token: str | None, registry: CollectorRegistry | None = None
    ) -> None:
        refuse_unguarded(listen, token, TOKEN_VARIABLE)
        super().__init__(build_app(gate, token, registry), listen, finish_seconds=_FINISH_SECONDS)
        self._closing = Thread(target=gate.close, args=(1.0,), name="gate-closing")

    def run(self) -> None:
        """Answer requests until `stop`. Returns when all waiting requests have been answered, or after 5 s."""
        try:
            super().run()
        finally:
            self.stop()
            self._closing.join()

    def stop(self) -> None:
        """Answer the waiting requests and make `run` return. From any thread; may be repeated."""
        if self._closing.ident is None:  # before `run` can come here, too
            self._closing.start()
        super().stop()


# Metrics, read from the gauges of the gate at each scrape.


def gate_metrics(gate: Gate) -> Iterable[Metric]:
    """The gauges of a gate, now."""
    stats = gate.stats()
    occupancy, depleted_ratio = stats.occupancy, stats.occupancy.pool_depleted_percent / 100
    state = GaugeMetricFamily("kquota_gate_state", "1 for the state that the gate is in.", labels=["state"])
    for name in get_args(FollowerState):
        state.add_metric([name], float(name == stats.state))
    yield state
    yield CounterMetricFamily("kquota_gate_unreadable_records", "Records that were skipped.", stats.unreadable)
    for name, documentation, value in (
        ("purgatory_size", "Entries of the watch lists.", occupancy.purgatory_size),
        ("delayed_operations", "Callers that wait for a time-out.", occupancy.delayed_operations),
        ("waiting_callers", "Callers that wait.", occupancy.waiting),
        ("waiting_for_memory", "Callers that wait for bytes of the pool.", occupancy.waiting_for_memory),
        ("throttles", "Throttles that run, of clients and of users.", occupancy.throttles),
        ("pool_size_bytes", "Size of the memory pool.", occupancy.pool_size_bytes),
        ("pool_available_bytes", "What is left of the memory pool.", occupancy.pool_available_bytes),
        ("pool_used_bytes", "Bytes of waiting requests.", occupancy.pool_used_bytes),
        ("pool_depleted_ratio", "Share of the last minute in which the pool refused.", depleted_ratio),
    ):
        yield GaugeMetricFamily(f"kquota_gate_{name}", documentation, value)
