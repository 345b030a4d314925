"""Errors of the dashboard.

PipelineError
└── dashboard
    ├── DashboardExtraMissing  its libraries are not installed
    ├── WritingUnguarded       edits were asked for without a token
    ├── EditsForbidden         an edit was asked for, and the dashboard only reads
    ├── EditRefused            an edit that can not be read
    ├── WhatIfRunning          a candidate is being tried, and another one has to wait
    └── WhatIfFailed           a candidate could not be tried
"""

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


class WritingUnguarded(PipelineError):
    """Edits were asked for without a token."""

    exit_code = 2

    def __init__(self) -> None:
        super().__init__(
            "'--allow-edits' must come with a token; got none",
            "give --token-file or KQUOTA_DASHBOARD_TOKEN, or leave --allow-edits out",
        )


class EditsForbidden(PipelineError):
    """An edit was asked for, and the dashboard only reads."""

    exit_code = 4

    def __init__(self) -> None:
        fix = f"start it with --allow-edits, or make the edit by {command_text('quotas', 'alter')}"
        super().__init__("'--allow-edits' must be given to write; got none", fix)


class EditRefused(PipelineError):
    """An edit that can not be read, or lacks what every edit must have."""

    exit_code = 5

    def __init__(self, what: str) -> None:
        super().__init__(what, "set values like producer_byte_rate=1MB/s, request_percentage=50% or mode=shadow")


class WhatIfRunning(PipelineError):
    """A candidate is being tried, and another one has to wait."""

    exit_code = 4

    def __init__(self) -> None:
        super().__init__("another what-if is running; one runs at a time", "ask again when it has ended")


class WhatIfFailed(PipelineError):
    """A candidate could not be tried on recorded usage.

    Attributes:
        reason: Why not.
    """

    exit_code = 5

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"what-if must have recorded usage to replay; got: {reason}", "wait until there is more")
