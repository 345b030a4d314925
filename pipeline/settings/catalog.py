"""A root of tables in a Spark catalog, as `catalog:main.kquota`: how it is written, and what goes with it."""

import re
from typing import Final, Self

PREFIX: Final = "catalog:"
TRIGGER_MS: Final = 3_000
"""`stream.trigger_ms` of a job with such a root, where nothing else is set: docs/catalog-tables.md has why."""

_ROOT: Final = re.compile(r"catalog:([A-Za-z0-9_-]+)\.([A-Za-z0-9_]+)")


def is_in_catalog(address: str) -> bool:
    """Whether an address is a name in a catalog, not a folder or a URI."""
    return address.startswith(PREFIX)


class CatalogRoot(str):
    """A root of tables in a catalog: a text like any other root, that knows its parts.

    Attributes:
        catalog: Name of the catalog.
        schema: Name of the schema in it.
        location: The folder or place in a store under which its tables lie, one below another by their names; None
            where the catalog chooses a place for each.
    """

    catalog: str
    schema: str
    location: str | None

    def __new__(cls, root: str, location: str | None) -> Self:
        """Make one of a text.

        Raises:
            ValueError: It is not written `catalog:CATALOG.SCHEMA`.
        """
        found = _ROOT.fullmatch(root)
        if found is None:
            message = (
                "'tables.root' must be catalog:CATALOG.SCHEMA of letters, digits and _, in the catalog's name also -, "
                f"as catalog:main.kquota; got {root}"
            )
            raise ValueError(message)
        made = super().__new__(cls, root)
        made.catalog, made.schema = found.groups()
        made.location = location
        return made

    def __reduce__(self) -> tuple[type["CatalogRoot"], tuple[str, str | None]]:
        """For copies, also in other processes."""
        return CatalogRoot, (str(self), self.location)

    @property
    def sql_schema(self) -> str:
        """The schema as SQL writes it."""
        return f"`{self.catalog}`.`{self.schema}`"

    def table(self, name: str) -> "CatalogTable":
        """The table of this name."""
        return CatalogTable(self, name)


class CatalogTable(str):
    """The address of a table in a catalog, as `catalog:main.kquota.usage`.

    Attributes:
        sql_name: Its name as SQL writes it.
    """

    sql_name: str

    def __new__(cls, root: CatalogRoot, name: str) -> Self:
        """Make one of its root and its name there."""
        made = super().__new__(cls, f"{root}.{name}")
        made.sql_name = f"{root.sql_schema}.`{name}`"
        return made
