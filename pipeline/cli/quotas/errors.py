"""Errors of the command line of quotas.

PipelineError
└── cli
    ├── QuotaUsage      flags that name no entity, or no change
    └── NothingMatched  the quota to delete does not exist
"""

from pipeline.errors import PipelineError


class QuotaUsage(PipelineError):
    """The flags do not name the entity or the change. The messages are those of kafka-configs, if it has any."""

    exit_code = 2

    def __init__(self, message: str, remedy: str = "see the command's --help") -> None:
        super().__init__(message, remedy)


class NothingMatched(PipelineError):
    """There is no quota for the entity.

    Attributes:
        entity: as kafka-configs prints it.
    """

    exit_code = 3

    def __init__(self, entity: str) -> None:
        self.entity = entity
        super().__init__(f"there is no quota for {entity}", "see which exist: kquota quotas describe")
