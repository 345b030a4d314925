"""The receivers that the settings name, with their secrets looked up."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from pipeline.alerts.errors import ReceiversInvalid, ReceiversMissing
from pipeline.alerts.kafka_receiver import TOPIC, KafkaReceiver
from pipeline.alerts.receiver import Receiver
from pipeline.alerts.webhook import Webhook
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.errors import ClientPropertiesInvalid
from pipeline.cluster.properties_file import resolved
from pipeline.settings.model import Settings

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}")
_REFERENCE: Final = re.compile(r"\$\{(env|file|dir):[^}]+\}")
_SHORTEST_KEY_BYTES: Final = 16


def receivers_of(settings: Settings) -> list[Receiver]:
    """All of them, ready to be sent to; none has been asked yet.

    Raises:
        ReceiversMissing: There is none.
        ReceiversInvalid: One can not be used, or a secret can not be found.
        BootstrapServersMissing: There is a topic, and the settings do not say where the cluster is.
    """
    alerts, mistakes = settings.alerts, list[str]()
    urls = _looked_up("webhooks", alerts.webhooks, mistakes)
    keys = _looked_up("signing_keys", alerts.signing_keys, mistakes)
    mistakes += [mistake for name, url in urls.items() if (mistake := _mistake_in(name, url)) is not None]
    mistakes += [
        f"'alerts.signing_keys' must name webhooks; got {name!r}, which is none"
        for name in alerts.signing_keys
        if name not in alerts.webhooks
    ]
    for name, given in alerts.signing_keys.items():
        if not _REFERENCE.fullmatch(given.get_secret_value()):
            rule = "must be ${env:NAME} or ${file:/path}, so that no key stands in the settings"
            mistakes.append(f"'alerts.signing_keys.{name}' {rule}; got something else")
        elif name in keys and len(keys[name].encode()) < _SHORTEST_KEY_BYTES:
            mistakes.append(f"'alerts.signing_keys.{name}' must have {_SHORTEST_KEY_BYTES} bytes or more; got fewer")
    if mistakes:
        raise ReceiversInvalid(mistakes)
    found: list[Receiver] = [
        Webhook(name, url, keys[name].encode() if name in keys else None, alerts.timeout_ms)
        for name, url in urls.items()
    ]
    if alerts.topic is not None:
        found.append(KafkaReceiver(alerts.topic, ClusterAccess.from_settings(settings.kafka), alerts.timeout_ms))
    if not found:
        raise ReceiversMissing
    return found


def _looked_up(branch: str, given: Mapping[str, SecretStr], mistakes: list[str]) -> dict[str, str]:
    """The values with what their references lead to."""
    values = {name: value.get_secret_value() for name, value in given.items()}
    try:
        found = resolved(values, f"alerts.{branch}")
    except ClientPropertiesInvalid as exc:
        mistakes += [f"{mistake} (under alerts.{branch})" for mistake in exc.mistakes]
        return {}
    return {name: value.strip() for name, value in found.items()}


def _mistake_in(name: str, url: str) -> str | None:
    """What is wrong with a webhook. The URL is not shown: it may hold a secret."""
    if _NAME.fullmatch(name) is None or name == TOPIC:
        return f"'alerts.webhooks' must have names of a-z, 0-9, _ and -, other than {TOPIC}; got {name[:40]!r}"
    subject = f"'alerts.webhooks.{name}' must be an http or https URL"
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return f"{subject}; got one that can not be read"
    if parts.scheme not in {"http", "https"}:
        return f"{subject}; got another scheme"
    if not has_host:
        return f"{subject}; got none with a host"
    if parts.username is not None or not url.isascii() or not url.isprintable() or " " in url:
        return f"{subject} of visible ASCII, without user and password; got another one"
    return None
