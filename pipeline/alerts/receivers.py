"""Receivers of alerts: webhooks and a Kafka topic, the messages they get, and those that the settings name."""

import hashlib
import hmac
import http.client
import json
import re
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final, Literal, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from kafka import KafkaProducer
from kafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError
from pydantic import SecretStr

from pipeline.alerts.judging import ALERTS, Book, Change, Key
from pipeline.clock import wall_ms
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.properties_file import resolved
from pipeline.command_line import command_text
from pipeline.errors import ClientPropertiesInvalid, PipelineError, UsageError, first_line, printable
from pipeline.settings.model import Settings

# Messages in the format of Alertmanager's webhook, version 4.

MOST_ALERTS: Final = 100
"""In one message, so that it is below 1 MB whatever the names are. More changes of a group are several messages."""

_NOT_ENDED: Final = "0001-01-01T00:00:00Z"
"""Go's zero time, which Alertmanager writes for a firing alert."""

Message = Mapping[str, Any]
"""All of the payload but `receiver`, which each receiver adds."""


def messages_of(changes: Sequence[Change], book: Book, job: str, external_url: str | None) -> list[dict[str, Any]]:
    """What to send: the changes by owner, each change in one message.

    `status` of a message is that of its whole group. Alerts of the group that have not changed are not in
    it: `truncatedAlerts` is how many they are.
    """
    if not changes:
        return []
    going_on = Counter(watched.labels.get("owner", "") for watched in book.values() if watched.is_firing)
    by_owner: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        by_owner[change.watched.labels.get("owner", "")].append(change)
    return [
        _message(owner, part, going_on[owner], job, external_url or "")
        for owner, of_owner in by_owner.items()
        for part in (of_owner[start : start + MOST_ALERTS] for start in range(0, len(of_owner), MOST_ALERTS))
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


def _message(owner: str, changes: Sequence[Change], going_on: int, job: str, external_url: str) -> dict[str, Any]:
    alerts = [_alert(change, external_url) for change in changes]
    firing = sum(change.status == "firing" for change in changes)
    return {
        "version": "4",
        "groupKey": f"kquota-{job}:{{{f'owner={json.dumps(owner)}' if owner else ''}}}",
        "truncatedAlerts": max(going_on - firing, 0),
        "status": "firing" if going_on else "resolved",
        "groupLabels": {"owner": owner} if owner else {},
        "commonLabels": _common(alerts, "labels"),
        "commonAnnotations": _common(alerts, "annotations"),
        "externalURL": external_url,
        "alerts": alerts,
    }


SILENCE_HOURS: Final = 4
"""For how long the command in a message silences it."""


def _alert(change: Change, external_url: str) -> dict[str, Any]:
    watched, name = change.watched, fingerprint(change.key)
    ended_ms = watched.gone_ms if change.status == "resolved" else None
    silence = command_text("alerts", "silence", name, "--for", f"{SILENCE_HOURS}h")
    return {
        "status": change.status,
        "labels": dict(watched.labels),
        "annotations": {
            **watched.annotations,
            **({"silence": silence} if change.key[0] in ALERTS and ended_ms is None else {}),
        },
        "startsAt": instant(watched.since_ms),
        "endsAt": _NOT_ENDED if ended_ms is None else instant(ended_ms),
        "generatorURL": watched.annotations.get("link", external_url),
        "fingerprint": name,
    }


def _common(alerts: Sequence[Mapping[str, Any]], name: str) -> dict[str, str]:
    first, *others = (alert[name] for alert in alerts)
    return {key: value for key, value in first.items() if all(one.get(key) == value for one in others)}


class Answer(NamedTuple):
    """The outcome of a message.

    Attributes:
        verdict: taken: the receiver has it. later: it is to be sent again. never: this message would be refused again.
        text: The answer of the receiver, in one printable line without secrets.
    """

    verdict: Literal["taken", "later", "never"]
    text: str


# A Kafka topic: a record per message, one key per group.

TOPIC: Final = "topic"
"""The name of this receiver."""


class KafkaReceiver:
    """Writes to a topic, which must exist. It connects with the first message, and again whenever it has to."""

    name = TOPIC

    def __init__(self, topic: str, access: ClusterAccess, timeout_ms: int) -> None:
        self._topic = topic
        self._access = access
        self._timeout_ms = timeout_ms
        self._producer: Any = None

    @property
    def place(self) -> str:
        """Topic and brokers."""
        return f"{self._topic} at {self._access.bootstrap_servers}"

    def send(self, message: Message) -> Answer:
        """Bring a message; returns within about the time-out, and raises nothing."""
        try:
            if self._producer is None:
                options = {"acks": "all", "client_id": "kquota-alerts", "max_block_ms": self._timeout_ms}
                self._producer = self._access.open(KafkaProducer, **options)
            value = body_of(message, self.name)
            sent = self._producer.send(self._topic, key=message["groupKey"].encode(), value=value)
            place = sent.get(timeout=self._timeout_ms / 1000)
        except (MessageSizeTooLargeError, RecordListTooLargeError) as exc:
            return Answer("never", first_line(exc))
        except PipelineError as exc:
            return Answer("later", str(exc))
        except KafkaError as exc:
            # What it had not yet sent would come twice.
            self.close()
            return Answer("later", first_line(exc))
        return Answer("taken", f"partition {place.partition}, offset {place.offset}")

    def close(self) -> None:
        """Leave the cluster."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(KafkaError):
                producer.close(timeout=1)


# The signature: proves to holders of the key that a message is from here, unchanged and not old.

TIMESTAMP_HEADER: Final = "X-Kquota-Timestamp"
SIGNATURE_HEADER: Final = "X-Kquota-Signature"


def signature(key: bytes, timestamp: str, body: bytes) -> str:
    """The value of `SIGNATURE_HEADER`: `sha256=` and HMAC-SHA256 of the timestamp, a full stop and the body, in hex.

    The timestamp is the value of `TIMESTAMP_HEADER`: whole seconds since the epoch, in decimal digits.
    """
    return f"sha256={hmac.new(key, timestamp.encode() + b'.' + body, hashlib.sha256).hexdigest()}"


# A webhook: one POST per message, signed if there is a key.

_MESSAGE_IS_WRONG: Final = frozenset({400, 405, 406, 410, 411, 413, 414, 415, 422, 431})
"""The same request would be refused again. Others are retried: also a wrong token, which can be corrected."""


class Webhook:
    """Sends to one URL. Redirects are not followed: a message goes only to the address of the settings.

    Args:
        url: http or https; it may hold a secret, so only scheme and host are ever shown.
        signing_key: See `signature`; None = not signed.
        timeout_ms: How long connecting, and each pause of the answer, may take.
    """

    def __init__(
        self, name: str, url: str, signing_key: bytes | None, timeout_ms: int, now_ms: Callable[[], int] = wall_ms
    ) -> None:
        self.name = name
        self._url = url
        self._signing_key = signing_key
        self._timeout_seconds = timeout_ms / 1000
        self._now_ms = now_ms
        self._opener = _opener()

    @property
    def place(self) -> str:
        """Scheme, host and port of the URL."""
        parts = urlsplit(self._url)
        return printable(f"{parts.scheme}://{parts.netloc}")

    def send(self, message: Message) -> Answer:
        """As `KafkaReceiver.send`. Each try has a timestamp, and so a signature, of its own."""
        body = body_of(message, self.name)
        # The scheme was checked with the settings.
        request = urllib.request.Request(self._url, body, self._headers(body), method="POST")  # noqa: S310
        try:
            with self._opener.open(request, timeout=self._timeout_seconds) as answer:
                return Answer("taken", str(answer.status))
        except HTTPError as exc:
            with exc:
                return _refusal(exc.code, exc.reason)
        except URLError as exc:
            cause = exc.reason
            return Answer("later", first_line(cause) if isinstance(cause, BaseException) else printable(str(cause)))
        except (OSError, http.client.HTTPException) as exc:
            return Answer("later", first_line(exc))

    def close(self) -> None:
        """Nothing is kept open between two messages."""

    def _headers(self, body: bytes) -> dict[str, str]:
        timestamp, agent = str(self._now_ms() // 1000), f"kquota/{version('kafka-quota-pipeline')}"
        headers = {"Content-Type": "application/json", "User-Agent": agent, TIMESTAMP_HEADER: timestamp}
        if self._signing_key is not None:
            headers[SIGNATURE_HEADER] = signature(self._signing_key, timestamp, body)
        return headers


def _refusal(status: int, reason: str) -> Answer:
    text = printable(f"{status} {reason}"[:200]).strip()
    if 300 <= status < 400:
        return Answer("later", f"{text}: a redirect, which is not followed; give the address that it leads to")
    return Answer("never" if status in _MESSAGE_IS_WRONG else "later", text)


def _opener() -> urllib.request.OpenerDirector:
    """Speaks HTTP and HTTPS, by way of the proxy of the environment if it names one; every other status is an error."""
    opener = urllib.request.OpenerDirector()
    ask = urllib.request
    kinds = (ask.ProxyHandler, ask.HTTPHandler, ask.HTTPSHandler, ask.HTTPErrorProcessor, ask.HTTPDefaultErrorHandler)
    for kind in kinds:
        opener.add_handler(kind())
    return opener


Receiver = KafkaReceiver | Webhook
"""Used by one thread at a time. `name` is as in the settings, `place` says without secrets where it is."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}")
_REFERENCE: Final = re.compile(r"\$\{(env|file|dir):[^}]+\}")
_SHORTEST_KEY_BYTES: Final = 16


def receivers_of(settings: Settings) -> list[Receiver]:
    """All receivers, ready to be sent to; none is contacted.

    Raises:
        UsageError: There is none, one cannot be used, a secret cannot be found, or the cluster has no address.
    """
    alerts, mistakes = settings.alerts, list[str]()
    urls = _looked_up("webhooks", alerts.webhooks, mistakes)
    keys = _looked_up("signing_keys", alerts.signing_keys, mistakes)
    mistakes += [mistake for name, url in urls.items() if (mistake := _mistake_in(name, url)) is not None]
    for name, given in alerts.signing_keys.items():
        if name not in alerts.webhooks:
            mistakes.append(f"'alerts.signing_keys' has a key for {name!r}, which is not a webhook")
        if not _REFERENCE.fullmatch(given.get_secret_value()):
            rule = "write ${env:NAME} or ${file:/path}, so that no key is in the settings"
            mistakes.append(f"'alerts.signing_keys.{name}' is not a reference; {rule}")
        elif name in keys and len(keys[name].encode()) < _SHORTEST_KEY_BYTES:
            mistakes.append(f"'alerts.signing_keys.{name}' is too short; use {_SHORTEST_KEY_BYTES} bytes or more")
    if mistakes:
        raise UsageError("; ".join(mistakes), "correct the settings under alerts: docs/alerts.md has an example")
    found: list[Receiver] = [
        Webhook(name, url, keys[name].encode() if name in keys else None, alerts.timeout_ms)
        for name, url in urls.items()
    ]
    if alerts.topic is not None:
        found.append(KafkaReceiver(alerts.topic, ClusterAccess.from_settings(settings.kafka), alerts.timeout_ms))
    if not found:
        msg = "alerts have no receiver: neither alerts.webhooks nor alerts.topic is set"
        schema = command_text("config", "schema", about="program")
        raise UsageError(msg, f"add one to the settings: {schema} has every key")
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
        return f"'alerts.webhooks' has the invalid name {name[:40]!r}; use a-z, 0-9, _ and -, and not {TOPIC}"
    subject = f"'alerts.webhooks.{name}'"
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return f"{subject} is not a URL"
    if parts.scheme not in {"http", "https"}:
        return f"{subject} is not an http or https URL"
    if not has_host:
        return f"{subject} has no host"
    if parts.username is not None or not url.isascii() or not url.isprintable() or " " in url:
        return f"{subject} has a user, a password, or characters other than visible ASCII"
    return None
