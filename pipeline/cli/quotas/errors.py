"""Errors of the command line of quotas.

PipelineError
└── cli
    ├── QuotaUsage      flags that name no entity, or nothing to do
    └── NothingMatched  no quota is where one was to be deleted
"""

from pipeline.errors import PipelineError


class QuotaUsage(PipelineError):
    """The flags do not say which entity, or what to do with it. Kafka's words where kafka-configs refuses them too."""

    exit_code = 2

    def __init__(self, message: str, remedy: str = "see the command's --help") -> None:
        super().__init__(message, remedy)


class NothingMatched(PipelineError):
    """There is no quota for the entity.

    Attributes:
        entity: in Kafka's words.
    """

    exit_code = 3

    def __init__(self, entity: str) -> None:
        self.entity = entity
        super().__init__(f"there is no quota for {entity}", "see which there are: kquota quotas describe")
