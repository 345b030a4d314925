"""JSON Schema of a model (draft 2020-12), with the unit of every field beside its description."""

from typing import Any

from pydantic import BaseModel

from schemas.columns import columns


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema a value of this model satisfies when it is read.

    Returns:
        pydantic's schema, with `$schema` and, for each property, `x-unit`. The generated per-field titles,
        which repeat the names, are left out.

    Raises:
        UnsupportedFieldType: a field the type table does not know.
    """
    schema = model.model_json_schema()
    properties: dict[str, dict[str, Any]] = schema["properties"]
    for column in columns(model):
        properties[column.name].pop("title", None)
        properties[column.name]["x-unit"] = column.unit
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
