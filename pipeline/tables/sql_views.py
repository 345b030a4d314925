"""The SQL of deploy/sql: views over the tables, with the place of the tables and the schema filled in.

Pure text: what runs it is a Spark or a Databricks of the operator.
"""

import re
from pathlib import Path
from typing import Final

from pipeline.errors import PipelineError
from pipeline.tables.address import QUOTAS, full_address, place_of, table_uri

VIEWS: Final = "views.sql"
QUOTA_HISTORY: Final = "quota_history.sql"

# A checkout has the files under deploy/; a wheel carries them beside this module.
_CHECKOUT: Final = Path(__file__).resolve().parents[2] / "deploy" / "sql"
_PACKAGED: Final = Path(__file__).with_name("sql")
_SCHEMA: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")
_NOT_IN_SQL: Final = re.compile(r"['`\\\n$]")


class NotInSql(PipelineError):
    """A schema or a root that can not be written into SQL as it is."""

    exit_code = 2


def view_sql(file: str, root: str, schema: str) -> str:
    """The text of a file of deploy/sql, with its two variables filled in.

    Args:
        file: `VIEWS` or `QUOTA_HISTORY`.
        root: Root of the tables. A folder becomes an absolute path.
        schema: Where tables and views are registered: `schema`, or `catalog.schema`.

    Raises:
        NotInSql: The schema is no name, or the root has a character that ends a text in SQL.
    """
    if not _SCHEMA.fullmatch(schema):
        message = f"'--schema' must be a name, or a catalog and a name; got {schema}"
        raise NotInSql(message, "for example --schema main.kquota")
    root = full_address(place_of(root)).rstrip("/")
    if found := _NOT_IN_SQL.search(root):
        message = f"'tables.root' must be an address without {found[0]!r} to be used in SQL; got {root}"
        raise NotInSql(message, "move the tables to another folder, or register them by hand and drop these lines")
    folder = _CHECKOUT if _CHECKOUT.exists() else _PACKAGED
    text = (folder / file).read_text(encoding="utf-8")
    # The quota table of a shard is beside its root.
    text = text.replace(f"${{tables_root}}/{QUOTAS}", table_uri(root, QUOTAS))
    return text.replace("${schema}", schema).replace("${tables_root}", root)
