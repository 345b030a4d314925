"""Messages in the format of Alertmanager's webhook, version 4: what reads those reads these."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pipeline.alerts.decision import Book, Change
from pipeline.alerts.facts import Key

MOST_ALERTS: Final = 100
"""In one message, so that it is below 1 MB whatever the names are. More changes of a group are several messages."""

_NOT_ENDED: Final = "0001-01-01T00:00:00Z"
"""Go's zero time, which Alertmanager writes for an alert that goes on."""

Message = Mapping[str, Any]
"""All of the payload but `receiver`, which each receiver adds."""


def messages_of(changes: Sequence[Change], book: Book, job: str, external_url: str | None) -> list[dict[str, Any]]:
    """What to send: the changes by owner, each change in one message.

    `status` of a message is that of its whole group. Alerts of the group that go on and have not changed are not in
    it: `truncatedAlerts` is how many they are.

    Args:
        changes: As `decide` returned them.
        book: Likewise: with what goes on.
        job: Part of each `groupKey`.
        external_url: Address of the dashboard; None = not known.
    """
    if not changes:
        return []
    going_on: dict[str, int] = defaultdict(int)
    for watched in book.values():
        if watched.is_firing:
            going_on[watched.labels.get("owner", "")] += 1
    by_owner: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        by_owner[change.watched.labels.get("owner", "")].append(change)
    return [
        _message(owner, part, going_on[owner], job, external_url or "")
        for owner, of_owner in by_owner.items()
        for part in _parts(of_owner)
    ]


def fingerprint(key: Key) -> str:
    """Sixteen hexadecimal digits that name an alert: equal for all messages about it, whatever its labels show."""
    return hashlib.blake2b(json.dumps(key).encode(), digest_size=8).hexdigest()


def instant(at_ms: int) -> str:
    """RFC 3339, in UTC, to the millisecond."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def body_of(message: Message, receiver: str) -> bytes:
    """The JSON that a receiver gets, in UTF-8."""
    return json.dumps({"receiver": receiver, **message}, separators=(",", ":"), ensure_ascii=False).encode()


def _parts(changes: Sequence[Change]) -> Iterable[Sequence[Change]]:
    return (changes[start : start + MOST_ALERTS] for start in range(0, len(changes), MOST_ALERTS))


def _message(owner: str, changes: Sequence[Change], going_on: int, job: str, external_url: str) -> dict[str, Any]:
    alerts = [_alert(change, external_url) for change in changes]
    firing = sum(change.status == "firing" for change in changes)
    group = {"owner": owner} if owner else {}
    return {
        "version": "4",
        "groupKey": f"kquota-{job}:{{{f'owner={json.dumps(owner)}' if owner else ''}}}",
        "truncatedAlerts": max(going_on - firing, 0),
        "status": "firing" if going_on else "resolved",
        "groupLabels": group,
        "commonLabels": _common(alerts, "labels"),
        "commonAnnotations": _common(alerts, "annotations"),
        "externalURL": external_url,
        "alerts": alerts,
    }


def _alert(change: Change, external_url: str) -> dict[str, Any]:
    watched = change.watched
    ended_ms = watched.gone_ms if change.status == "resolved" else None
    return {
        "status": change.status,
        "labels": dict(watched.labels),
        "annotations": dict(watched.annotations),
        "startsAt": instant(watched.since_ms),
        "endsAt": _NOT_ENDED if ended_ms is None else instant(ended_ms),
        "generatorURL": watched.annotations.get("link", external_url),
        "fingerprint": fingerprint(change.key),
    }


def _common(alerts: Sequence[Mapping[str, Any]], name: str) -> dict[str, str]:
    """What all alerts have in common."""
    first, *others = (alert[name] for alert in alerts)
    return {key: value for key, value in first.items() if all(one.get(key) == value for one in others)}
