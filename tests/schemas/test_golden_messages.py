"""Messages as earlier versions wrote them. They must stay readable and keep their meaning."""

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.asyncapi import MODELS
from schemas.throttle_record import ThrottleRecord

GOLDEN = sorted(Path(__file__).parent.joinpath("golden").glob("*.json"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_an_old_message_is_read_as_ever(path: Path) -> None:
    golden: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    value = json.dumps(golden["message"]).encode()
    read = (
        ThrottleRecord.from_value(value)
        if golden["model"] == "throttle_record"
        else MODELS[golden["model"]].model_validate_json(value)
    )
    assert json.loads(read.model_dump_json()) == golden["read_as"]


def test_there_is_a_message_of_every_model() -> None:
    assert {json.loads(path.read_text(encoding="utf-8"))["model"] for path in GOLDEN} == set(MODELS)
