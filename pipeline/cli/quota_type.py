"""The option `--type` of commands that show throttles: a quota type, or the beginning of its name."""

from typing import Annotated

import typer

from pipeline.errors import PipelineError
from quota.entity import QUOTA_TYPES

QuotaTypeOption = Annotated[
    str | None,
    typer.Option("--type", metavar="TYPE", help=f"{', '.join(QUOTA_TYPES)}; or a beginning.", show_default=False),
]


class UnknownQuotaType(PipelineError):
    """`--type` names no quota type, or several."""

    exit_code = 2

    def __init__(self, given: str) -> None:
        super().__init__(
            f"'--type' must be one of {', '.join(QUOTA_TYPES)}, or the beginning of one; got {given}",
            f"for example --type {QUOTA_TYPES[0]}",
        )


def quota_type_of(given: str | None) -> str | None:
    """The quota type that is meant; None if none was given.

    Raises:
        UnknownQuotaType: No quota type begins like this, or several do.
    """
    if given is None:
        return None
    found = [quota_type for quota_type in QUOTA_TYPES if quota_type.startswith(given)]
    if len(found) != 1:
        raise UnknownQuotaType(given)
    return found[0]
