"""The dashboard on a socket, until it is asked to stop; and the one function that puts its parts together."""

import socket
from typing import Final

from starlette.applications import Starlette

from pipeline.activity import JobSigns
from pipeline.dashboard.api import Answers
from pipeline.dashboard.errors import DashboardPortBusy, DashboardUnguarded, WritingUnguarded
from pipeline.dashboard.feed import Feed
from pipeline.dashboard.http import build_app
from pipeline.dashboard.reader import TablesReader
from pipeline.gate.listening import Listen
from pipeline.metrics.registry import new_registry
from pipeline.settings.model import Settings
from pipeline.web_server import bound_socket, web_server

TOKEN_VARIABLE: Final = "KQUOTA_DASHBOARD_TOKEN"  # noqa: S105 - the name of a variable
_FINISH_SECONDS: Final = 2


class DashboardServer:
    """One listening socket in front of the application.

    Args:
        settings: Root of the tables, the job's name, scope and limits.
        signs: Of the job.
        listen: Where to listen.
        token: See `build_app`.
        may_write: Whether quotas may be edited.

    Raises:
        WritingUnguarded: They may, and there is no token.
        DashboardUnguarded: Other machines could connect, and there is no token.
        DashboardPortBusy: The system does not let it listen on the address.
    """

    def __init__(
        self,
        settings: Settings,
        signs: JobSigns,
        listen: Listen,
        token: str | None,
        may_write: bool = False,
    ) -> None:
        if not listen.is_loopback and token is None:
            raise DashboardUnguarded(listen.host)
        if may_write and token is None:
            raise WritingUnguarded
        self._listen = listen
        self._socket = _bound(listen)
        app, self._feed = _parts(settings, signs, token, may_write)
        self._server = web_server(app, lifespan="on", finish_seconds=_FINISH_SECONDS)

    @property
    def address(self) -> str:
        """Of the page."""
        host = f"[{self._listen.host}]" if ":" in self._listen.host else self._listen.host
        return f"http://{host}:{int(self._socket.getsockname()[1])}/"

    def run(self) -> None:
        """Answer requests until `stop`."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Make `run` return, and end the streams. From any thread or signal handler; may be repeated."""
        self._feed.end()
        self._server.should_exit = True


def _parts(settings: Settings, signs: JobSigns, token: str | None, may_write: bool) -> tuple[Starlette, Feed]:
    reader = TablesReader(settings.tables.root, signs, settings.scope)
    feed = Feed(reader)
    app = build_app(feed, Answers(reader, feed, settings, may_write), token, registry=new_registry("dashboard"))
    return app, feed


def _bound(listen: Listen) -> socket.socket:
    try:
        return bound_socket(listen.host, listen.port, backlog=128)
    except OSError as exc:
        raise DashboardPortBusy(listen.host, listen.port, exc.strerror or str(exc)) from exc
