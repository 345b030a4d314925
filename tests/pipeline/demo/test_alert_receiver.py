"""The demo's webhook hands on what `kquota alerts` really sends."""

from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from pipeline.alerts.alerter import try_receivers
from pipeline.demo.run import alert_receiver
from pipeline.settings.model import AlertsSettings, Settings


def test_each_alert_of_a_message_is_heard_and_the_message_is_taken() -> None:
    heard: list[Mapping[str, Any]] = []
    with alert_receiver(heard.append) as url:
        settings = Settings(alerts=AlertsSettings(webhooks={"demo": SecretStr(url)}))
        ((_, answer, _),) = try_receivers(settings, 1_700_000_000_000)
    assert answer.verdict == "taken"
    assert [(alert["status"], alert["labels"]["alertname"]) for alert in heard] == [("firing", "KquotaTest")]


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b"{}", b'{"alerts": [1]}', b'{"alerts": [{}]}'])
def test_what_is_no_message_is_refused_and_the_next_one_is_heard(body: bytes) -> None:
    heard: list[Mapping[str, Any]] = []
    with alert_receiver(heard.append) as url:
        assert httpx.post(url, content=body).status_code == 400
        assert httpx.post(url, json={"alerts": [{"labels": {}}]}).status_code == 200
    assert heard == [{"labels": {}}]
