"""An HTTP service: requests of throttled clients wait, and are refused when too many bytes wait.

KAFKA=broker:9092 hypercorn examples.starlette_service:app

curl -H 'X-User: alice' -H 'X-Client-Id: etl' -d hello localhost:8000/upload
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipeline.gate import Gate, GateDepleted, GateLimits, GateTimeout, RequestSizeRefused
from schemas import THROTTLE_TOPIC

LONGEST_WAIT_MS = int(os.environ.get("LONGEST_WAIT_MS", "10000"))


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """One gate per process. It starts open if the broker is away."""
    topic = os.environ.get("THROTTLE_TOPIC", THROTTLE_TOPIC)
    with Gate.connect(os.environ["KAFKA"], GateLimits(pool_bytes=64_000_000), topic=topic) as app.state.gate:
        yield


async def upload(request: Request) -> Response:
    """Read the body inside the block, so that waiting requests are counted before they are in memory."""
    gate: Gate = request.app.state.gate
    user, client_id = request.headers.get("x-user", "anonymous"), request.headers.get("x-client-id", "")
    size_bytes = int(request.headers.get("content-length", "0"))
    try:
        async with gate.acquire_async(user, client_id, request_bytes=size_bytes, timeout_ms=LONGEST_WAIT_MS) as passage:
            body = await request.body()
            return JSONResponse({"stored_bytes": len(body), "waited_ms": passage.waited_ms})
    except GateTimeout as timeout:
        retry_after_seconds = -(-timeout.remaining_ms // 1000)
        return JSONResponse({"error": timeout.message}, 429, {"Retry-After": str(retry_after_seconds)})
    except GateDepleted as depleted:
        return JSONResponse({"error": depleted.message}, 503, {"Retry-After": "1"})
    except RequestSizeRefused as refused:
        return JSONResponse({"error": refused.message}, 413)


app = Starlette(routes=[Route("/upload", upload, methods=["POST"])], lifespan=lifespan)
