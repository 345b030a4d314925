"""The Spark DDL of a model. It is a string, because parsing it into a `StructType` needs a running session."""

from pydantic import BaseModel

from schemas.columns import Column, columns


def spark_ddl(model: type[BaseModel]) -> str:
    """The columns of a model as a Spark DDL string.

    Names are in backticks. Columns that are never null have `NOT NULL`; `from_json` ignores that: every field it reads
    can be null.

    Raises:
        UnsupportedFieldType: the type table does not know the type of a field.
    """
    return ", ".join(_column_ddl(column) for column in columns(model))


def _column_ddl(column: Column) -> str:
    return f"`{column.name}` {column.type.spark}" + ("" if column.nullable else " NOT NULL")
