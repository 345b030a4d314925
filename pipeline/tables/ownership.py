"""The name of the job that owns a set of tables.

The epoch, the record numbers and the transactional id depend on the job's name. If a second job wrote the same tables
under another name, neither would fence the other. So the tables store the name of the first job.
"""

from typing import Final

from pipeline.errors import PipelineError
from pipeline.tables.address import table_uri
from pipeline.tables.errors import TableMissing
from pipeline.tables.opening import open_table

PROPERTY: Final = "kquota.job"
KEPT_IN: Final = "batches"


class TablesOfAnotherJob(PipelineError):
    """The tables were written by a job of another name.

    Attributes:
        root: Root of the tables.
        job: The name of this driver's job.
        owner: The name of the job that wrote them.
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
    """Store the job's name in its tables at its first start, and check it at later starts.

    Raises:
        TablesOfAnotherJob: The tables store another name.
    """
    owner = owner_of(root)
    if owner is None:
        table = open_table(table_uri(root, KEPT_IN))
        table.alter.set_table_properties({PROPERTY: job}, raise_if_not_exists=False)
    elif owner != job:
        raise TablesOfAnotherJob(root, job, owner)


def owner_of(root: str) -> str | None:
    """The job name stored in the tables; None if no job has started on them, or if there are no tables."""
    try:
        return open_table(table_uri(root, KEPT_IN)).metadata().configuration.get(PROPERTY)
    except TableMissing:
        return None
