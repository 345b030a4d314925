"""What can be wrong with alerts.

PipelineError
├── ReceiversInvalid     a receiver of the settings can not be used; all mistakes at once
├── ReceiversMissing     the settings name none
├── ReceiversRefused     a test message did not arrive
└── AlertsAreRunning     another process has the state file
"""

from collections.abc import Sequence
from pathlib import Path

from pipeline.command_line import command_text
from pipeline.errors import PipelineError


class ReceiversInvalid(PipelineError):
    """One or more receivers can not be used.

    Attributes:
        mistakes: One clause each; none holds a secret.
    """

    exit_code = 2

    def __init__(self, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("; ".join(mistakes), "correct the settings under alerts: docs/alerts.md has an example")


class ReceiversMissing(PipelineError):
    """Nobody would be told."""

    exit_code = 2

    def __init__(self) -> None:
        schema = command_text("config", "schema", about="program")
        super().__init__(
            "'alerts' must name a receiver, in alerts.webhooks or alerts.topic; got none",
            f"add one to the settings: {schema} has every key",
        )


class ReceiversRefused(PipelineError):
    """A test message did not arrive.

    Attributes:
        names: Of the receivers.
    """

    exit_code = 6

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        super().__init__(
            f"'alerts' must reach all receivers; got no success from {', '.join(names)}",
            "the column answer says what each of them told",
        )


class AlertsAreRunning(PipelineError):
    """Another process tells the same alerts."""

    exit_code = 4

    def __init__(self, path: Path, holder: str) -> None:
        self.path = path
        super().__init__(
            f"'alerts.state_file' must be used by one process; got {path}, which process {holder} uses",
            "stop the other one, or name another file",
        )
