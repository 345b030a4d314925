from pathlib import Path
from typing import Any

import pytest
import yaml

import schemas.asyncapi
from schemas.asyncapi import generated_files
from schemas.columns import json_schema
from schemas.throttle_record import ThrottleRecord
from schemas.usage import UsageEvent

PACKAGE = Path(schemas.asyncapi.__file__).parent


@pytest.mark.parametrize("path", list(generated_files()))
def test_a_committed_file_is_what_the_models_say(path: str) -> None:
    assert (PACKAGE / path).read_text(encoding="utf-8") == generated_files()[path], "run python -m schemas.asyncapi"


def test_no_schema_of_a_model_that_is_gone_is_left() -> None:
    assert sorted(f"json/{path.name}" for path in (PACKAGE / "json").iterdir()) == sorted(
        path for path in generated_files() if path.startswith("json/")
    )


def test_the_asyncapi_document_embeds_the_schemas_of_the_topics() -> None:
    document = yaml.safe_load((PACKAGE / "asyncapi.yaml").read_text(encoding="utf-8"))
    assert document["components"]["schemas"] == {
        "UsageEvent": json_schema(UsageEvent),
        "ThrottleRecord": json_schema(ThrottleRecord),
    }
    assert {channel["address"] for channel in document["channels"].values()} == {
        "quota.usage.v1",
        "quota.throttle.v1",
        "quota.marker.v1",
    }


def test_every_reference_of_the_document_leads_somewhere() -> None:
    document = yaml.safe_load((PACKAGE / "asyncapi.yaml").read_text(encoding="utf-8"))
    for reference in _references(document):
        target: Any = document
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if "$ref" in node else []
        return own + [reference for value in node.values() for reference in _references(value)]
    if isinstance(node, list):
        return [reference for value in node for reference in _references(value)]
    return []
