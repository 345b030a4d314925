"""Which job tables belong to: one job writes them, under one name.

Epoch, record numbers and the transactional id hang on the job's name. A second name on the same tables would be a
second driver that nothing fences, so the first one is kept in the tables.
"""

from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from pipeline.errors import PipelineError
from pipeline.tables.layout import table_uri

PROPERTY: Final = "kquota.job"
_KEPT_IN: Final = "batches"


class TablesOfAnotherJob(PipelineError):
    """The tables were written by a job of another name.

    Attributes:
        root: Of the tables.
        job: The name this driver has.
        owner: The name they were written under.
    """

    exit_code = 4

    def __init__(self, root: str, job: str, owner: str) -> None:
        self.root = root
        self.job = job
        self.owner = owner
        super().__init__(
            f"'job' must be {owner!r}, whose tables {root} are; got {job!r}",
            f"start with --job {owner}, or with --tables and --checkpoint of its own",
        )


def claim(root: str, job: str) -> None:
    """Keep the job's name in its tables at its first start.

    Raises:
        TablesOfAnotherJob: Another name is there.
    """
    owner = owner_of(root)
    if owner is None:
        table = DeltaTable(table_uri(root, _KEPT_IN))
        table.alter.set_table_properties({PROPERTY: job}, raise_if_not_exists=False)
    elif owner != job:
        raise TablesOfAnotherJob(root, job, owner)


def owner_of(root: str) -> str | None:
    """The name kept in the tables; None if no job has started on them, or there are none."""
    try:
        return DeltaTable(table_uri(root, _KEPT_IN)).metadata().configuration.get(PROPERTY)
    except TableNotFoundError:
        return None
