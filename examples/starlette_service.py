"""An HTTP service that holds the requests of throttled clients, and refuses when it holds too many.

KAFKA=broker:9092 uvicorn examples.starlette_service:app

curl -H 'X-User: alice' -H 'X-Client-Id: etl' -d hello localhost:8000/upload
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipeline.gate.errors import GateDepleted, GateTimeout, RequestSizeRefused
from pipeline.gate.gate import Gate
from pipeline.gate.waiting_room import GateLimits

LONGEST_WAIT_MS = 10_000


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """One gate a process. It starts open if the broker is away."""
    topic = os.environ.get("THROTTLE_TOPIC", "quota.throttle.v1")
    with Gate.connect(os.environ["KAFKA"], GateLimits(pool_bytes=64_000_000), topic=topic) as app.state.gate:
        yield


async def upload(request: Request) -> Response:
    """The body is read inside the block: what is held is counted before it is in memory."""
    gate: Gate = request.app.state.gate
    user, client_id = request.headers.get("x-user", "anonymous"), request.headers.get("x-client-id", "")
    size_bytes = int(request.headers.get("content-length", "0"))
    try:
        async with gate.acquire_async(user, client_id, request_bytes=size_bytes, timeout_ms=LONGEST_WAIT_MS) as passage:
            body = await request.body()
            return JSONResponse({"stored_bytes": len(body), "waited_ms": passage.waited_ms})
    except GateTimeout as late:
        retry_after_seconds = -(-late.remaining_ms // 1000)
        return JSONResponse({"error": late.message}, 429, {"Retry-After": str(retry_after_seconds)})
    except GateDepleted as full:
        return JSONResponse({"error": full.message}, 503, {"Retry-After": "1"})
    except RequestSizeRefused as large:
        return JSONResponse({"error": large.message}, 413)


app = Starlette(routes=[Route("/upload", upload, methods=["POST"])], lifespan=lifespan)
