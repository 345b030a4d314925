"""The settings file of the demo is one that every command takes."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from pipeline.demo.folder import DemoFolder, write_settings
from pipeline.settings.loading import load_settings
from pipeline.settings.model import AlertsSettings, KafkaSettings, Settings

KAFKA = KafkaSettings(bootstrap_servers="127.0.0.1:9092")


@pytest.mark.parametrize("page", [None, "http://127.0.0.1:8788"])
def test_whom_the_demo_tells_of_alerts_is_in_its_settings_file(page: str | None, tmp_path: Path) -> None:
    alerts = AlertsSettings(webhooks={"demo": SecretStr("http://127.0.0.1:9/alerts")}, external_url=page)
    folder = DemoFolder(tmp_path)
    write_settings(folder, Settings(kafka=KAFKA, alerts=alerts))
    read = load_settings(folder.settings_file).alerts
    assert (read.webhooks["demo"].get_secret_value(), read.external_url) == ("http://127.0.0.1:9/alerts", page)


def test_a_demo_that_tells_nobody_has_no_alerts_in_its_settings_file(tmp_path: Path) -> None:
    folder = DemoFolder(tmp_path)
    write_settings(folder, Settings(kafka=KAFKA))
    assert "alerts" not in folder.settings_file.read_text("utf-8")
    assert load_settings(folder.settings_file).alerts == AlertsSettings()
