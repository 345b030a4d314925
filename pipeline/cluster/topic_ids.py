"""The job's topics by their ids (KIP-516): a topic that was deleted and made anew has its old name and another id.

Offsets belong to a topic and not to its name. On another topic of that name they pass over its first messages, without
any error. So the ids are stored with the offsets; they are compared when a job starts, and while it runs.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, Final
from uuid import UUID

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors

from pipeline.cluster.connecting import ClusterAccess, as_cluster_error, topic_missing
from pipeline.command_line import command_text
from pipeline.errors import Refused
from pipeline.settings.model import Settings

_REQUEST_TIMEOUT_MS: Final = 5_000

Ids = Mapping[str, str]
"""The id of each topic that exists, by its name; "" in a cluster without ids."""


def id_text(topic_id: Any) -> str:
    """An id as Kafka's own tools print it: base64 for URLs, without padding. "" for none, and for an id of zeros."""
    known = UUID(str(topic_id)) if topic_id else UUID(int=0)
    return base64.urlsafe_b64encode(known.bytes).decode("ascii").rstrip("=") if known.int else ""


def topic_ids(admin: Any, names: Sequence[str]) -> Ids:
    """The ids of topics, by a connected `KafkaAdminClient`."""
    described = admin.describe_topics(list(names))
    return {topic["name"]: id_text(topic.get("topic_id")) for topic in described if not topic["error_code"]}


class TopicIds:
    """Asks for the ids of some topics, over a connection that stays open. For several threads."""

    def __init__(self, access: ClusterAccess, names: Sequence[str]) -> None:
        self._access, self._names = access, names
        self._admin: KafkaAdminClient | None = None
        self._lock = Lock()

    def __call__(self) -> Ids:
        """The ids now; `ClusterUnreachable` if no broker answers, also over a new connection."""
        with self._lock:
            try:
                return self._asked()
            except kafka_errors.KafkaError:
                self._leave()
                with as_cluster_error(self._access.bootstrap_servers):
                    return self._asked()

    def close(self) -> None:
        """End the connection."""
        with self._lock:
            self._leave()

    def _asked(self) -> Ids:
        if self._admin is None:
            self._admin = self._access.open(KafkaAdminClient, request_timeout_ms=_REQUEST_TIMEOUT_MS)
        return topic_ids(self._admin, self._names)

    def _leave(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()


def refuse_other_usage_topic(settings: Settings, before: Ids, now: Ids) -> None:
    """Refuse to go on at offsets of another topic; an id that is not known is not compared."""
    topic = settings.kafka.usage_topic
    if is_other(before, now, topic):
        message = (
            f"topic '{topic}' was deleted and made anew, or this is another cluster: its id is {now[topic]}, and the "
            f"offsets in the tables are those of {before[topic]}"
        )
        fix = f"read the new topic from its first message, with a new checkpoint: {_command(settings, before, now)}"
        raise Refused(message, fix)


def refuse_other_throttle_topics(settings: Settings, before: Ids, now: Ids) -> None:
    """Refuse to publish on another throttle topic, or with another marker topic, than before."""
    throttles, marker = settings.kafka.throttle_topic, settings.kafka.marker_topic
    if is_other(before, now, throttles):
        lost, mended = "throttles that run now are not on it", "publish them again, once with --take-topic"
        raise Refused(_made_anew(throttles, before, now, lost), f"{mended}: {_command(settings, before, now)}")
    if is_other(before, now, marker):
        lost = f"how far '{throttles}' is published was kept there"
        mended = f"go on after the newest record of '{throttles}', once with --take-topic"
        raise Refused(_made_anew(marker, before, now, lost), f"{mended}: {_command(settings, before, now)}")


def _made_anew(topic: str, before: Ids, now: Ids, lost: str) -> str:
    return (
        f"topic '{topic}' was deleted and made anew, or this is another cluster: its id is {now[topic]}, before it was "
        f"{before[topic]}, and {lost}"
    )


def is_other(before: Ids, now: Ids, topic: str) -> bool:
    """Whether a name is that of another topic than before."""
    return bool(before.get(topic) and now.get(topic)) and before[topic] != now[topic]


def _command(settings: Settings, before: Ids, now: Ids) -> str:
    """The command that goes on with all the topics as they are."""
    kafka, flags = settings.kafka, []
    if is_other(before, now, kafka.usage_topic):
        flags = ["--checkpoint", f"{settings.stream.checkpoint.rstrip('/')}-{now[kafka.usage_topic]}"]
    if any(is_other(before, now, topic) for topic in (kafka.throttle_topic, kafka.marker_topic)):
        flags.append("--take-topic")
    return command_text("run", "--bootstrap-server", kafka.bootstrap_servers or "", *flags, about="job")


class JobTopics:
    """The topics of one life of a job: from its start to its end they must be the same.

    Args:
        ask: Gives the ids of the usage, throttle and marker topic now.

    Attributes:
        ids: Their ids at the start.
    """

    def __init__(self, settings: Settings, ask: Callable[[], Ids]) -> None:
        self._settings, self._ask = settings, ask
        self.ids: Ids = {}

    def begin(self) -> None:
        """Take the ids of now as those of this life. The usage topic must exist."""
        kafka = self._settings.kafka
        self.ids = self._ask()
        if kafka.usage_topic not in self.ids:
            raise topic_missing(kafka.usage_topic, kafka.bootstrap_servers or "", "usage")

    def check(self) -> None:
        """Refuse a topic that was deleted and made anew since the start.

        What was read before this call was on the old usage topic: an id never comes back.
        """
        now = self._ask()
        refuse_other_usage_topic(self._settings, self.ids, now)
        refuse_other_throttle_topics(self._settings, self.ids, now)
