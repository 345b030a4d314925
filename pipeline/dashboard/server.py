"""The dashboard on a socket, until it is asked to stop; and the one function that puts its parts together."""

from typing import Final

from pipeline.activity import JobSigns
from pipeline.dashboard.api import Answers
from pipeline.dashboard.errors import WritingUnguarded
from pipeline.dashboard.feed import Feed
from pipeline.dashboard.http import build_app
from pipeline.dashboard.reader import TablesReader
from pipeline.metrics.registry import new_registry
from pipeline.settings.model import Settings
from pipeline.web import Listen, WebServer, refuse_unguarded

TOKEN_VARIABLE: Final = "KQUOTA_DASHBOARD_TOKEN"  # noqa: S105 - the name of a variable
_FINISH_SECONDS: Final = 2
_MOST_CONNECTIONS: Final = 256


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
        ListenRefused: Other machines could connect without a token, or the system does not let it listen there.
    """

    def __init__(
        self,
        settings: Settings,
        signs: JobSigns,
        listen: Listen,
        token: str | None,
        may_write: bool = False,
    ) -> None:
        refuse_unguarded(listen, token, TOKEN_VARIABLE)
        if may_write and token is None:
            raise WritingUnguarded
        reader = TablesReader(settings.tables.root, signs, settings.scope)
        self._feed = Feed(reader)
        answers = Answers(reader, self._feed, settings, may_write)
        app = build_app(self._feed, answers, token, registry=new_registry("dashboard"))
        self._server = WebServer(
            app, listen, lifespan="on", finish_seconds=_FINISH_SECONDS, most_connections=_MOST_CONNECTIONS
        )

    @property
    def address(self) -> str:
        """Of the page."""
        return self._server.address

    def run(self) -> None:
        """Answer requests until `stop`."""
        self._server.run()

    def stop(self) -> None:
        """Make `run` return, and end the streams and a running what-if. From any thread or signal handler."""
        self._feed.end()
        self._server.stop()
