"""Errors of the command line of quotas.

PipelineError
└── cli
    ├── QuotaUsage       flags that name no entity, or no change
    ├── NothingMatched   the quota to delete does not exist
    └── WouldDeleteAll   a file would delete every quota
"""

from collections.abc import Sequence
from typing import Final

from pipeline.command_line import command_text
from pipeline.errors import PipelineError

_SHOWN: Final = 5


class QuotaUsage(PipelineError):
    """The flags do not name the entity or the change. The messages are those of kafka-configs, if it has any."""

    exit_code = 2

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message, fix)


class NothingMatched(PipelineError):
    """There is no quota for the entity.

    Attributes:
        entity: as kafka-configs prints it.
        alike: entities with a quota that can hold in its place, likewise, the most specific first.
    """

    exit_code = 3

    def __init__(self, entity: str, alike: Sequence[str] = ()) -> None:
        self.entity = entity
        self.alike = tuple(alike)
        shown = [*alike[:_SHOWN], *([f"{len(alike) - _SHOWN} more"] if len(alike) > _SHOWN else [])]
        instead = f"; there is one for {'; '.join(shown)}" if shown else ""
        fix = f"see which exist: {command_text('quotas', 'describe')}"
        super().__init__(f"there is no quota for {entity}{instead}", fix)


class WouldDeleteAll(PipelineError):
    """A file that replaces all quotas would leave none, for example because it was generated without its content.

    Attributes:
        deleted_rows: how many quotas would be deleted.
    """

    exit_code = 5

    def __init__(self, deleted_rows: int) -> None:
        self.deleted_rows = deleted_rows
        super().__init__(
            f"quotas were not changed: the file would delete all {deleted_rows} quotas of the table and leave none",
            "correct the file, or repeat the command with --allow-empty to delete them all",
        )
