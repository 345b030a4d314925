"""The usage topic, as requests in a request log name it."""

import base64
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

from kafka.errors import KafkaError

from schemas.names import USAGE_TOPIC


@dataclass(frozen=True, slots=True)
class UsageTopic:
    """The topic that meters write to.

    Attributes:
        name: Its name. Produce requests up to v12 carry it.
        topic_id: Its id in the request log's form (base64 for URLs, without padding). Produce requests from v13 on
            carry only the id. None: not known.
    """

    name: str = USAGE_TOPIC
    topic_id: str | None = None

    @classmethod
    def described_by(cls, admin: Any, name: str) -> Self:
        """The topic with its id, if the cluster tells it.

        Args:
            admin: A connected `kafka.KafkaAdminClient`.
            name: The topic's name. A missing topic is no error here.
        """
        try:
            (topic,) = admin.describe_topics([name])
        except KafkaError:
            return cls(name)
        topic_id = UUID(str(topic.get("topic_id") or UUID(int=0)))
        # Brokers without topic ids, and without the topic, answer with an id of zeros.
        return cls(name, _as_logged(topic_id.bytes) if topic_id.int else None)

    def is_all_of(self, produce_request: Any) -> bool:
        """Whether a produce request writes to this topic and to no other.

        Args:
            produce_request: The logged body; "" if it was not logged.

        Raises:
            KeyError, TypeError, AttributeError: The body has another form.
        """
        topics: list[dict[str, Any]] = (produce_request or {}).get("topicData") or []
        return bool(topics) and all(self._is_named_by(topic) for topic in topics)

    def _is_named_by(self, topic: dict[str, Any]) -> bool:
        if "topicId" in topic:
            return self.topic_id is not None and topic["topicId"] == self.topic_id
        return bool(topic["name"] == self.name)


def _as_logged(uuid_bytes: bytes) -> str:
    return base64.urlsafe_b64encode(uuid_bytes).decode("ascii").rstrip("=")
