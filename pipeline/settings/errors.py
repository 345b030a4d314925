"""What can be wrong with settings.

PipelineError
├── InvalidSettings         values that are wrong; all of them at once
└── SettingsFileUnreadable  the file is missing or not TOML
"""

from collections.abc import Sequence
from pathlib import Path

from pipeline.command_line import command_text
from pipeline.errors import PipelineError


class InvalidSettings(PipelineError):
    """One or more values are wrong.

    Attributes:
        mistakes: One line each: place, key, what it must be, what it is.
    """

    exit_code = 2

    def __init__(self, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__(
            "; ".join(mistakes), f"see every key and its range: {command_text('config', 'schema', about='program')}"
        )


class SettingsFileUnreadable(PipelineError):
    """The settings file can not be used."""

    exit_code = 2

    def __init__(self, file: Path, reason: str) -> None:
        self.file = file
        fix = (
            f"correct what stands there, by the keys of: {command_text('config', 'schema', about='program')}"
            if file.is_file()
            else f"correct the path in --config or KQUOTA_CONFIG: {file.absolute()} does not exist"
        )
        super().__init__(f"'--config' must name a readable TOML file; got {file} ({reason})", fix)
