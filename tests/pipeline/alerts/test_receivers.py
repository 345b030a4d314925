"""Receivers as the settings name them: secrets come from files and the environment, and are never shown."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.alerts.receivers import receivers_of
from pipeline.errors import UsageError
from pipeline.settings.model import AlertsSettings, Settings
from tests.pipeline.alerts.receiving import receiving
from tests.pipeline.cli.running import kquota

HIDDEN = "s3cret-and-long-enough"


def settings(**alerts: Any) -> Settings:
    return Settings(alerts=AlertsSettings.model_validate(alerts))


def test_secrets_are_looked_up_in_files_and_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(f"{HIDDEN}\n")
    with receiving() as inbox:
        monkeypatch.setenv("HOOK", inbox.url)
        (hook,) = receivers_of(
            settings(webhooks={"ops": "${env:HOOK}/more"}, signing_keys={"ops": f"${{file:{tmp_path}/key}}"})
        )
        assert hook.send({"alerts": []}).verdict == "taken"
        (request,) = inbox.requests
    assert request.path == "/hook/s3cret/more"
    assert request.headers["X-Kquota-Signature"].startswith("sha256=")


@pytest.mark.parametrize(
    ("alerts", "mistake"),
    [
        (
            {"webhooks": {"ops": f"ftp://host/{HIDDEN}"}},
            "'alerts.webhooks.ops' is not an http or https URL",
        ),
        ({"webhooks": {"ops": f"file:///{HIDDEN}"}}, "is not an http or https URL"),
        ({"webhooks": {"ops": f"http:///{HIDDEN}"}}, "has no host"),
        ({"webhooks": {"ops": f"http://[::1/{HIDDEN}"}}, "is not a URL"),
        ({"webhooks": {"ops": f"http://host:99999/{HIDDEN}"}}, "is not a URL"),
        ({"webhooks": {"ops": f"http://me:{HIDDEN}@host/"}}, "has a user, a password"),
        ({"webhooks": {"ops": f"http://host/a\r\nX: {HIDDEN}"}}, "other than visible ASCII"),
        ({"webhooks": {"ops": "${env:NOT_THERE}"}}, "'ops' refers to a secret that does not exist: ${env:NOT_THERE}"),
        ({"webhooks": {"topic": "http://host/"}}, "and not topic"),
        ({"webhooks": {"a b": "http://host/"}}, "use a-z, 0-9"),
        ({"signing_keys": {"ops": "${env:HOME}"}}, "has a key for 'ops', which is not a webhook"),
        (
            {"webhooks": {"ops": "http://host/"}, "signing_keys": {"ops": HIDDEN}},
            "no key is in the settings",
        ),
        ({"webhooks": {"ops": "http://host/"}, "signing_keys": {"ops": "${env:SHORT}"}}, "use 16 bytes or more"),
    ],
)
def test_a_receiver_that_can_not_be_used_is_refused_without_showing_its_secret(
    alerts: dict[str, Any], mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHORT", "0123456789")
    with pytest.raises(UsageError) as caught:
        receivers_of(settings(**alerts))
    assert mistake in str(caught.value)
    assert HIDDEN not in str(caught.value)
    assert "0123456789" not in str(caught.value)


def test_one_error_names_all_mistakes() -> None:
    with pytest.raises(UsageError) as caught:
        receivers_of(settings(webhooks={"a": "ftp://x/", "b": "http:///"}, signing_keys={"c": "x"}))
    found = caught.value.message
    assert all(
        mistake in found
        for mistake in ("webhooks.a' is not", "webhooks.b' has no host", "key for 'c'", "keys.c' is not")
    )


def test_alerts_without_a_receiver_are_refused() -> None:
    with pytest.raises(UsageError, match="no receiver"):
        receivers_of(settings())


def test_a_topic_needs_the_address_of_the_cluster() -> None:
    with pytest.raises(UsageError):
        receivers_of(settings(topic="quota.alerts"))


def test_config_show_and_mistakes_of_settings_mask_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kquota.toml"
    file.write_text(f'[alerts.webhooks]\nops = "https://host/{HIDDEN}"\n[alerts.signing_keys]\nops = "{HIDDEN}"\n')
    shown = kquota("config", "show", "--config", str(file), "-o", "json")
    assert shown.exit_code == 0
    assert {row["value"] for row in json.loads(shown.stdout) if "alerts.webhooks" in row["key"]} == {"**********"}
    file.write_text(f'[alerts.webhooks]\nops = ["{HIDDEN}"]\n')
    refused = kquota("config", "show", "--config", str(file))
    assert refused.exit_code == 2
    assert HIDDEN not in shown.stdout + shown.stderr + refused.stdout + refused.stderr
    monkeypatch.setenv("KQUOTA_ALERTS__WEBHOOKS__pager", f"https://host/{HIDDEN}")
    assert kquota("config", "show").exit_code == 0
