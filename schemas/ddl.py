"""Spark DDL of a model: a string, because parsing one into a `StructType` needs a live session."""

from pydantic import BaseModel

from schemas.columns import Column, columns


def spark_ddl(model: type[BaseModel]) -> str:
    """The columns of a model as a Spark DDL string.

    Names stand in backticks, columns that are never null carry `NOT NULL` (which `from_json` ignores: every
    field it reads may be null).

    Raises:
        UnsupportedFieldType: a field the type table does not know.
    """
    return ", ".join(_column_ddl(column) for column in columns(model))


def _column_ddl(column: Column) -> str:
    return f"`{column.name}` {column.type.spark}" + ("" if column.nullable else " NOT NULL")
