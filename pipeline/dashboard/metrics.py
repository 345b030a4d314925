"""What the dashboard tells Prometheus: its requests, its streams, and how old what it shows is."""

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.dashboard.feed import Feed
from pipeline.metrics.registry import ReadAtScrape

STREAM: Final = "/api/v1/stream"
_BOUNDS_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_OTHER: Final = "other"


class CountedRequests:
    """Counts requests on their way to the application, and how long each waits for the beginning of its answer.

    Args:
        app: What answers.
        registry: Where the metrics are.
        routes: The paths that the application has. A path that it does not have, which anybody may make up, is
            counted as `other`, and all below /static as /static.
    """

    def __init__(self, app: ASGIApp, registry: CollectorRegistry, routes: Iterable[str]) -> None:
        self._app = app
        self._routes = frozenset(routes)
        self._requests = Counter(
            "kquota_dashboard_requests", "Requests, by route and status.", ["route", "status"], registry=registry
        )
        self._durations = Histogram(
            "kquota_dashboard_request_duration_seconds",
            "Time until an answer begins.",
            ["route"],
            buckets=_BOUNDS_SECONDS,
            registry=registry,
        )
        self._streams = Gauge("kquota_dashboard_streams", "Pages that follow the state now.", registry=registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a request answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route, began = self._route(scope["path"]), perf_counter()
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
            if not status:  # the server answers with 500, or nobody waits any more
                self._note(route, 500, perf_counter() - began)
            elif route == STREAM and status == 200:
                self._streams.dec()

    def _note(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._durations.labels(route).observe(seconds)
        if route == STREAM and status == 200:
            self._streams.inc()

    def _route(self, path: str) -> str:
        if path in self._routes:
            return path
        return "/static" if path.startswith("/static/") else _OTHER


def tell_age(registry: CollectorRegistry, feed: Feed, now_ms: Callable[[], int]) -> None:
    """Tell at each scrape how old what the dashboard shows is; what is not known is left out.

    Args:
        registry: Where it is told.
        feed: The newest state.
        now_ms: The wall clock.
    """

    def read() -> Iterable[Metric]:
        state = feed.state
        if state is None:
            return
        look_age_ms = max(now_ms() - state.now_ms, 0)
        yield GaugeMetricFamily(
            "kquota_dashboard_look_age_seconds", "How long ago the tables were looked at.", look_age_ms / 1000
        )
        batch_age_ms = state.health.last_batch_age_ms
        if batch_age_ms is not None:
            yield GaugeMetricFamily(
                "kquota_dashboard_batch_age_seconds",
                "How old the newest micro-batch is that was read.",
                (batch_age_ms + look_age_ms) / 1000,
            )

    registry.register(ReadAtScrape(read))
