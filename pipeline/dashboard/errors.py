"""Errors of the dashboard.

PipelineError
└── dashboard
    ├── DashboardExtraMissing  its libraries are not installed
    ├── DashboardUnguarded     other machines could connect, and there is no token
    ├── DashboardPortBusy      the address is taken, or not of this machine
    ├── WritingUnguarded       edits were asked for without a token
    ├── EditsForbidden         an edit was asked for, and the dashboard only reads
    ├── EditRefused            an edit that can not be read
    ├── WhatIfFailed           a candidate could not be tried
    └── QueryRefused           a request has parameters that can not be answered
"""

from collections.abc import Sequence

from pipeline.command_line import command_text, extra_text
from pipeline.errors import PipelineError


class DashboardExtraMissing(PipelineError):
    """The dashboard's libraries are not installed.

    Attributes:
        library: The first one that is missing.
    """

    def __init__(self, library: str) -> None:
        self.library = library
        super().__init__(
            f"'kquota dashboard' must have starlette and uvicorn; got no {library}",
            extra_text("dashboard"),
        )


class DashboardUnguarded(PipelineError):
    """Other machines could connect, and there is no token.

    Attributes:
        host: The address.
    """

    exit_code = 2

    def __init__(self, host: str) -> None:
        self.host = host
        super().__init__(
            f"'--host' must be a loopback address without a token; got {host}",
            "leave --host out, or give --token-file or KQUOTA_DASHBOARD_TOKEN",
        )


class DashboardPortBusy(PipelineError):
    """The dashboard can not listen on the address.

    Attributes:
        host: The address.
        port: Its port.
        reason: What the operating system says.
    """

    exit_code = 4

    def __init__(self, host: str, port: int, reason: str) -> None:
        self.host = host
        self.port = port
        self.reason = reason
        super().__init__(
            f"'--host' and '--port' must be free and of this machine; got {host}:{port}: {reason}",
            "choose another port, or 0 for any free one",
        )


class WritingUnguarded(PipelineError):
    """Edits were asked for without a token."""

    exit_code = 2

    def __init__(self) -> None:
        super().__init__(
            "'--allow-edits' must come with a token; got none",
            "give --token-file or KQUOTA_DASHBOARD_TOKEN, or leave --allow-edits out",
        )


class QueryRefused(PipelineError):
    """A request has parameters that can not be answered. It names all mistakes at once.

    Attributes:
        mistakes: One text per mistake: `'name' must …; got …`.
    """

    exit_code = 2

    def __init__(self, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("; ".join(mistakes), "see /api/v1/openapi.json")


class EditsForbidden(PipelineError):
    """An edit was asked for, and the dashboard only reads."""

    exit_code = 4

    def __init__(self) -> None:
        remedy = f"start it with --allow-edits, or make the edit by {command_text('quotas', 'alter')}"
        super().__init__("'--allow-edits' must be given to write; got none", remedy)


class EditRefused(PipelineError):
    """An edit that can not be read, or lacks what every edit must have."""

    exit_code = 5

    def __init__(self, what: str) -> None:
        super().__init__(what, "set values like producer_byte_rate=1MB/s, request_percentage=50% or mode=shadow")


class WhatIfFailed(PipelineError):
    """A candidate could not be tried on recorded usage.

    Attributes:
        reason: Why not.
    """

    exit_code = 5

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"what-if must have recorded usage to replay; got: {reason}", "wait until there is more")
