"""The JSON Schema of a model (draft 2020-12), with the unit of every field beside its description."""

from typing import Any

from pydantic import BaseModel

from schemas.columns import columns


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema that a value of this model must satisfy when it is read.

    Returns:
        pydantic's schema, with `$schema`, and `x-unit` for each property. The generated titles of the fields, which
        only repeat the names, are left out.

    Raises:
        UnsupportedFieldType: the type table does not know the type of a field.
    """
    schema = model.model_json_schema()
    properties: dict[str, dict[str, Any]] = schema["properties"]
    for column in columns(model):
        properties[column.name].pop("title", None)
        properties[column.name]["x-unit"] = column.unit
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
