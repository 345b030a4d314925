"""What the demo writes for its user: a settings file for all commands, and quotas to try with `what-if`."""

import json
from collections.abc import Mapping
from typing import Any, Final

from pipeline.demo.folder import DemoFolder
from pipeline.demo.plan import DEMO_QUOTAS, STOCK_CLIENTS
from pipeline.settings.alerts import AlertsSettings
from pipeline.settings.model import Settings
from quota.entity import QUOTA_TYPES

_HEAD: Final = "# Written by the demo at each start. With it every command of kquota works on this demo.\n"
_CANDIDATE_HEAD: Final = """\
# Quotas to try with what-if. They are the demo's own, with twice as much for alice/etl and half as much for
# search. Change them as you like; the demo does not write this file again.
"""


def write_settings(folder: DemoFolder, settings: Settings) -> None:
    """Write the settings file: where broker, topics, tables, checkpoint and lock of this demo are."""
    kafka, stream = settings.kafka, settings.stream
    text = _toml(
        {
            "job": settings.job,
            "run_dir": str(settings.run_dir),
            "kafka": {
                "bootstrap_servers": kafka.bootstrap_servers,
                "usage_topic": kafka.usage_topic,
                "throttle_topic": kafka.throttle_topic,
                "marker_topic": kafka.marker_topic,
            },
            "tables": {"root": settings.tables.root},
            "stream": {"checkpoint": stream.checkpoint, "trigger_ms": stream.trigger_ms},
            # The stock clients. The others listen.
            "sync": {"users": sorted(client.user for client in STOCK_CLIENTS)},
            **_alerts(settings.alerts),
        }
    )
    folder.settings_file.write_text(_HEAD + text, encoding="utf-8")


def _alerts(alerts: AlertsSettings) -> dict[str, Any]:
    """Whom the demo tells; nothing if it tells nobody."""
    if not alerts.webhooks:
        return {}
    link = {} if alerts.external_url is None else {"external_url": alerts.external_url}
    urls = {name: url.get_secret_value() for name, url in alerts.webhooks.items()}
    return {"alerts": link, "alerts.webhooks": urls}


def write_candidate(folder: DemoFolder) -> None:
    """Write the candidate if there is none."""
    if folder.candidate.exists():
        return
    changed = {("alice", "etl"): ("producer_byte_rate", 2.0), ("search", ""): ("consumer_byte_rate", 0.5)}
    lines = []
    for row in DEMO_QUOTAS:
        bounds = {name: row[name] for name in QUOTA_TYPES}
        name, factor = changed.get((row["user"], row["client_id"]), ("", 1.0))
        shown = {
            "user": row["user"],
            "client_id": row["client_id"],
            **{key: bound * factor if key == name else bound for key, bound in bounds.items() if bound is not None},
        }
        # A JSON object on one line is YAML.
        lines.append(f"  - {json.dumps(shown)}\n")
    folder.candidate.write_text(f"{_CANDIDATE_HEAD}quotas:\n{''.join(lines)}", encoding="utf-8")


def _toml(values: Mapping[str, Any]) -> str:
    """Values first, then one table for each branch. Text is quoted as JSON quotes it, which TOML reads alike."""
    plain = [f"{key} = {_value(value)}\n" for key, value in values.items() if not isinstance(value, Mapping)]
    branches = [f"\n[{key}]\n{_toml(value)}" for key, value in values.items() if isinstance(value, Mapping)]
    return "".join([*plain, *branches])


def _value(value: Any) -> str:
    # TOML refuses the one control character that JSON leaves as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
