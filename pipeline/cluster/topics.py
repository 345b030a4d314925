"""The topics: how they must be set, how they are created, and what is wrong with existing ones.

A usage topic with the producers' own timestamps, a throttle topic that is not compacted or a marker topic of
several partitions make decisions late, lost or repeated without any error. The job refuses to start with
them. A different retention only changes how far back the topics can be read.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from kafka import admin as kafka_admin
from kafka import errors as kafka_errors

from pipeline.cluster.acls import Names
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


def create_command(bootstrap_servers: str, specs: Iterable[TopicSpec]) -> str:
    """The command of kquota that creates these topics, with the names that are not the usual ones."""
    usual: dict[str, str] = {"usage": USAGE_TOPIC, "throttle": THROTTLE_TOPIC, "marker": MARKER_TOPIC}
    names = [
        argument
        for spec in specs
        if spec.name != usual.get(spec.purpose, spec.name)
        for argument in (f"--{spec.purpose}-topic", spec.name)
    ]
    return command_text("topics", "create", "--bootstrap-server", bootstrap_servers, *names, about="cluster")


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
    for spec in wanted:
        if spec not in there:
            create = create_command(bootstrap_servers, wanted)
            findings.append(Finding(spec.name, "error", "topic", "none", "there", create))
            continue
        partitions = len(described[spec.name]["partitions"])
        findings += _check_partitions(spec, partitions, bootstrap_servers, create_command(bootstrap_servers, wanted))
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
