"""The topics: how they must be set, how they are created, and what is wrong with existing ones.

A usage topic with the producers' own timestamps, a throttle topic that is not compacted or a marker topic of
several partitions make decisions late, lost or repeated without any error. The job refuses to start with
them. A different retention only changes how far back the topics can be read.

**Ids (KIP-516).** A topic that was deleted and made anew has its old name and another id. Offsets belong to a topic and
not to its name. On another topic of that name they pass over its first messages, without any error. So the ids are
stored with the offsets; they are compared when a job starts, and while it runs.
"""

import base64
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Literal
from uuid import UUID

from kafka import KafkaAdminClient
from kafka import admin as kafka_admin
from kafka import errors as kafka_errors

from pipeline.cluster.acls import Names
from pipeline.cluster.connecting import ClusterAccess, as_cluster_error, creating_topics, topic_missing
from pipeline.command_line import command_text
from pipeline.errors import Refused, TopicNotCreated
from pipeline.settings.model import Settings
from schemas.names import MARKER_TOPIC, THROTTLE_TOPIC, USAGE_TOPIC

# kafka-python has no types.
_ERRORS: Final[Any] = kafka_errors
_ADMIN: Final[Any] = kafka_admin
HOUR_MS: Final = 3_600_000
Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """How one topic must be set.

    Attributes:
        partition_rule: exactly (else an error), at_least (else a warning), any.
        required: Settings without which the job refuses to start.
    """

    name: str
    purpose: Literal["usage", "throttle", "marker", "demo"]
    partitions: int
    partition_rule: Literal["exactly", "at_least", "any"]
    required: Mapping[str, str]
    advised: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    topic: str
    severity: Severity
    what: str
    got: str
    wanted: str
    fix: str

    def __str__(self) -> str:
        if self.what == "topic":
            return f"topic '{self.topic}' does not exist"
        return f"topic '{self.topic}': '{self.what}' is {self.got}, not {self.wanted}"


def topic_specs(
    cores: int,
    longest_throttle_ms: int,
    usage_topic: str = USAGE_TOPIC,
    throttle_topic: str = THROTTLE_TOPIC,
    marker_topic: str = MARKER_TOPIC,
) -> tuple[TopicSpec, TopicSpec, TopicSpec]:
    """The usage, throttle and marker topic.

    * `longest_throttle_ms`: The largest cap; the throttle topic keeps records for twice as long, an hour at least.
    """
    append_time = {"message.timestamp.type": "LogAppendTime"}
    kept_ms = {"retention.ms": str(max(HOUR_MS, 2 * longest_throttle_ms)), "segment.ms": str(HOUR_MS // 6)}
    return (
        TopicSpec(usage_topic, "usage", 2 * cores, "at_least", append_time, {"retention.ms": str(24 * HOUR_MS)}),
        TopicSpec(throttle_topic, "throttle", 1, "any", {"cleanup.policy": "compact,delete"}, kept_ms),
        TopicSpec(marker_topic, "marker", 1, "exactly", {}, {}),
    )


def create_topics(
    admin: Any, specs: Iterable[TopicSpec], replication_factor: int = -1
) -> dict[str, Literal["created", "exists"]]:
    """Create the topics that are missing; existing ones are not changed. Replication -1 = the cluster's default.

    `TopicNotCreated` if the cluster refused one; those before it were created.
    """
    done: dict[str, Literal["created", "exists"]] = {}
    for spec in specs:
        wanted = {
            "num_partitions": spec.partitions,
            "replication_factor": replication_factor,
            "configs": {**spec.required, **spec.advised},
        }
        answer = admin.create_topics({spec.name: wanted}, raise_errors=False)["topics"][0]
        error = _ERRORS.for_code(answer["error_code"])
        if error is kafka_errors.TopicAlreadyExistsError:
            done[spec.name] = "exists"
        elif answer["error_code"]:
            refusal = error(answer["error_message"])
            raise TopicNotCreated(spec.name, answer["error_message"] or error.__name__) from refusal
        else:
            done[spec.name] = "created"
    admin.wait_for_topics([name for name, what in done.items() if what == "created"])
    return done


def check_topics(admin: Any, specs: Iterable[TopicSpec], bootstrap_servers: str) -> list[Finding]:
    """Everything that differs from `specs`; empty if nothing does."""
    wanted = list(specs)
    described = {topic["name"]: topic for topic in admin.describe_topics([spec.name for spec in wanted])}
    there = [spec for spec in wanted if described[spec.name]["error_code"] == 0]
    settings: dict[str, dict[str, dict[str, Any]]] = {}
    if there:
        resources = [_ADMIN.ConfigResource(_ADMIN.ConfigResourceType.TOPIC, spec.name) for spec in there]
        settings = admin.describe_configs(resources, config_filter="all")["topic"]
    findings: list[Finding] = []
    create = creating_topics(bootstrap_servers, {spec.purpose: spec.name for spec in wanted})
    for spec in wanted:
        if spec not in there:
            findings.append(Finding(spec.name, "error", "topic", "none", "there", create))
            continue
        partitions = len(described[spec.name]["partitions"])
        findings += _check_partitions(spec, partitions, bootstrap_servers, create)
        values = {key: setting["value"] for key, setting in settings[spec.name].items()}
        findings += _check_settings(spec, values, bootstrap_servers)
    return findings


def refuse_unfit(findings: Iterable[Finding]) -> None:
    """Raise `Refused`, with the commands that correct them, if there are errors among the findings."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        raise Refused("; ".join(map(str, errors)), "; ".join(dict.fromkeys(error.fix for error in errors)))


def _check_partitions(spec: TopicSpec, partitions: int, address: str, create: str) -> list[Finding]:
    if spec.partition_rule == "exactly" and partitions != spec.partitions:
        # Partitions cannot be removed, so the topic is deleted and created again; it stores no records.
        fix = f"kafka-topics --bootstrap-server {address} --delete --topic {spec.name} && {create}"
        return [Finding(spec.name, "error", "partitions", str(partitions), str(spec.partitions), fix)]
    if spec.partition_rule == "at_least" and partitions < spec.partitions:
        fix = f"kafka-topics --bootstrap-server {address} --alter --topic {spec.name} --partitions {spec.partitions}"
        wanted = f"{spec.partitions} or more"
        return [Finding(spec.name, "warning", "partitions", str(partitions), wanted, fix)]
    return []


def _check_settings(spec: TopicSpec, values: Mapping[str, str], address: str) -> list[Finding]:
    findings = []
    for key, wanted in {**spec.required, **spec.advised}.items():
        got = values.get(key, "")
        if _words(got) == _words(wanted):
            continue
        # Compaction without deletion is harmless: records are kept longer than needed, none is missing.
        harmless = key == "cleanup.policy" and "compact" in _words(got)
        severity: Severity = "error" if key in spec.required and not harmless else "warning"
        # A value with a comma is put in brackets, as kafka-configs wants it.
        value = f"[{wanted}]" if "," in wanted else wanted
        fix = (
            f"kafka-configs --bootstrap-server {address} --alter --entity-type topics --entity-name {spec.name} "
            f"--add-config '{key}={value}'"
        )
        findings.append(Finding(spec.name, severity, key, got or "nothing", wanted, fix))
    return findings


def _words(value: str) -> frozenset[str]:
    return frozenset(word.strip() for word in value.split(","))


def wanted_topics(settings: Settings, cores: int | None = None) -> tuple[TopicSpec, TopicSpec, TopicSpec]:
    """The three topics of this job, as they must be; cores: None = of this machine."""
    kafka = settings.kafka
    return topic_specs(
        cores=cores or len(os.sched_getaffinity(0)),
        longest_throttle_ms=settings.engine.longest_throttle_ms(),
        usage_topic=kafka.usage_topic,
        throttle_topic=kafka.throttle_topic,
        marker_topic=kafka.marker_topic,
    )


def resource_names(settings: Settings) -> Names:
    """The names of the resources that this job and what runs next to it use in the cluster."""
    kafka = settings.kafka
    return Names(kafka.usage_topic, kafka.throttle_topic, kafka.marker_topic, settings.job)


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
