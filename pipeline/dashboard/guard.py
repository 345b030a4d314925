"""Who may ask: the token, the host that a browser believes to talk to, and what a page may load."""

import hmac
import ipaddress
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_OPEN: Final = ("/healthz", "/readyz")


class Guard:
    """Refuses what must not be answered, and adds the headers that keep a browser from loading anything else.

    Everything below /api/, and /metrics, needs the token, if there is one; the page itself holds no data and asks for
    it. Without a token only names of this machine are answered: a web page elsewhere could have its own name lead here,
    and read what this page may read.

    Args:
        app: What is guarded.
        token: None: none is needed.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have it answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope["path"], Headers(scope=scope))
        await (self._app if refusal is None else refusal)(scope, receive, guarded)

    def _refusal(self, path: str, headers: Headers) -> JSONResponse | None:
        if self._token is None:
            host = headers.get("host", "")
            if path in _OPEN or _is_this_machine(host):
                return None
            return refused(421, f"'Host' must be a name of this machine; got {host[:80]}", "open it as 127.0.0.1")
        if not path.startswith("/api/") and path != "/metrics":
            return None
        given = headers.get("authorization", "").encode()
        if hmac.compare_digest(given, self._wanted):
            return None
        what = "another one" if given else "none"
        answer = refused(401, f"'Authorization' must carry the dashboard's token; got {what}", "send Bearer <token>")
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer


def refused(status: int, error: str, remedy: str) -> JSONResponse:
    """The answer to a request that can not be answered."""
    return JSONResponse({"error": error, "remedy": remedy}, status)


def _is_this_machine(host: str) -> bool:
    name = host[: host.rfind("]") + 1].strip("[]") if host.startswith("[") else host.partition(":")[0]
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
