"""What docs/alerts.md shows is so: its settings load, its program knows our messages, its message is like ours."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.alerts.receivers import Webhook, receivers_of
from pipeline.clock import wall_ms
from pipeline.settings.loading import load_settings
from tests.pages.blocks import ROOT, blocks_of
from tests.pipeline.alerts.receiving import receiving
from tests.pipeline.alerts.told import Told

KEY = b"a key that both have, 24"


def block(language: str) -> str:
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    (found,) = (block.text for block in blocks_of(page) if block.language == language)
    return found


def test_the_settings_name_receivers_that_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chat-url").write_text("https://chat.example/T0/B1\n")
    monkeypatch.setenv("OPS_KEY", KEY.decode())
    file = tmp_path / "kquota.toml"
    file.write_text('[kafka]\nbootstrap_servers = "b:9092"\n' + block("toml").replace("/etc/kquota", str(tmp_path)))
    found = receivers_of(load_settings(file))
    assert [(one.name, one.place) for one in found] == [
        ("ops", "https://hooks.example"),
        ("chat", "https://chat.example"),
        ("topic", "quota.alerts at b:9092"),
    ]


@pytest.mark.parametrize(
    ("age_ms", "alter", "expected"),
    [
        (0, {}, True),
        (290_000, {}, True),
        (302_000, {}, False),
        (-302_000, {}, False),
        (0, {"key": b"a key of somebody else, 32 bytes"}, False),
        (0, {"body": b"{}"}, False),
        (0, {"X-Kquota-Timestamp": "1700000000"}, False),
        (0, {"X-Kquota-Signature": ""}, False),
        (0, {"X-Kquota-Signature": None}, False),
        (0, {"X-Kquota-Timestamp": None}, False),
        (0, {"X-Kquota-Signature": "sha256=\u00e9"}, False),
    ],
)
def test_the_program_knows_what_is_from_kquota(age_ms: int, alter: dict[str, Any], expected: bool) -> None:
    names: dict[str, Any] = {}
    exec(block("python"), names)  # noqa: S102 - of our page
    with receiving() as inbox:
        Webhook("ops", inbox.url, KEY, 60_000, lambda: wall_ms() - age_ms).send({"alerts": []})
    (request,) = inbox.requests
    headers = {**request.headers, **{name: value for name, value in alter.items() if name.startswith("X-")}}
    headers = {name: value for name, value in headers.items() if value is not None}
    is_ours = names["is_from_kquota"](alter.get("key", KEY), headers, alter.get("body", request.body))
    assert is_ours is expected


def test_the_message_has_the_fields_of_a_real_one(tmp_path: Path) -> None:
    with receiving() as inbox:
        told = Told(str(tmp_path / "nothing"), tmp_path, {"ops": inbox.url}, external_url="https://kquota.example")
        told.look(0)
        told.look(60_000)
    (real,) = inbox.taken
    shown = json.loads(block("json"))
    assert shown.keys() == real.keys()
    assert shown["alerts"][0].keys() == real["alerts"][0].keys()
    assert {"summary"} <= real["alerts"][0]["annotations"].keys()
