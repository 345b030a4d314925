"""Errors of tables in a Spark catalog.

PipelineError
├── CatalogForgets      a catalog in memory, and no location to find the tables again
├── CommitsOverwritten  Spark's commits there would overwrite each other
├── CatalogRefuses      Spark or the catalog refuses a statement
└── TableElsewhere      a table is not under the location that the settings name
"""

from pipeline.errors import PipelineError


class CatalogForgets(PipelineError):
    """The session keeps its catalog in memory: the next one would find no table.

    Attributes:
        root: The root of the tables.
    """

    exit_code = 2

    def __init__(self, root: str) -> None:
        self.root = root
        super().__init__(
            f"'tables.location' must be set for {root}: Spark keeps this catalog in memory and forgets its tables "
            "when the session ends; got null",
            "name a folder; at each start the job registers the tables that are there",
        )


class CommitsOverwritten(PipelineError):
    """Spark's writer would overwrite commits of others in this store.

    Attributes:
        table: The name of the table.
        location: Where it is.
    """

    exit_code = 2

    def __init__(self, table: str, location: str) -> None:
        self.table = table
        self.location = location
        super().__init__(
            f"{table} must not be in S3 without a service that orders commits, because Spark's writer looks whether "
            f"a commit is there and then writes it; got {location}",
            "use a catalog that manages commits, or delta-rs with the address as tables.root",
        )


class CatalogRefuses(PipelineError):
    """Spark or the catalog refuses to create, register or alter.

    Attributes:
        subject: The schema or table.
        cause: What Spark said, in one line.
    """

    def __init__(self, subject: str, cause: str) -> None:
        self.subject = subject
        self.cause = cause
        super().__init__(
            f"{subject} can not be created or changed: {cause}",
            "correct tables.root, or let somebody with the right create schema and tables (docs/catalog-tables.md)",
        )


class TableElsewhere(PipelineError):
    """The catalog has a table of this name at another place than the settings say.

    Attributes:
        table: The name of the table.
        location: Where it is.
        wanted: Where it must be.
    """

    exit_code = 2

    def __init__(self, table: str, location: str, wanted: str) -> None:
        self.table = table
        self.location = location
        self.wanted = wanted
        super().__init__(
            f"{table} must lie at {wanted}, by 'tables.location'; got {location}",
            "correct tables.location, or take another schema",
        )
