"""The rights each part of kquota needs in a cluster with an authorizer, and the commands that grant them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from shlex import quote
from typing import Final, Literal

from pipeline.errors import Unreachable

Role = Literal["job", "meter", "gate", "operator", "import", "sync"]
Resource = Literal["topic", "group", "transactional-id", "cluster"]
METER_IDENTITY: Final = "kquota-meter.prometheus"
"""Group and transactional id of the meter that scrapes a cluster. No job has a full stop in its name."""

ROLES: Final[Mapping[Role, str]] = {
    "job": "kquota run",
    "meter": "kquota meter, and every program that reports usage",
    "gate": "kquota gate, and every program that follows throttles",
    "operator": "kquota topics create and check",
    "import": "kquota quotas import",
    "sync": "kquota quotas sync",
}


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """One operation on one resource, by its exact name.

    The operation is in the words of kafka-acls; Read and Write include Describe.
    """

    resource: Resource
    name: str
    operation: Literal["Read", "Write", "Create", "Describe", "DescribeConfigs", "AlterConfigs"]

    def __str__(self) -> str:
        if self.resource == "cluster":
            return f"{self.operation} on the cluster"
        return f"{self.operation} on {self.resource} '{self.name}'"


DESCRIBE_QUOTAS: Final = Acl("cluster", "kafka-cluster", "DescribeConfigs")
"""To see the quotas that brokers enforce."""

ALTER_QUOTAS: Final = Acl("cluster", "kafka-cluster", "AlterConfigs")
"""To change them."""


@dataclass(frozen=True, slots=True)
class Names:
    """What the resources of an installation are called."""

    usage_topic: str
    throttle_topic: str
    marker_topic: str
    job: str


def marker_acls(identity: str, marker_topic: str) -> tuple[Acl, ...]:
    """The rights to move a mark inside transactions (KIP-98): Read on group and topic for the committed offset."""
    return (
        Acl("topic", marker_topic, "Read"),
        Acl("group", identity, "Read"),
        Acl("transactional-id", identity, "Write"),
    )


def acls_of(role: Role, names: Names) -> tuple[Acl, ...]:
    """The rights that a role needs, no others.

    The job reads its topics' settings before it starts, and the throttle topic when its publish marker has expired.
    """
    usage, throttle, marker = names.usage_topic, names.throttle_topic, names.marker_topic
    all_topics = (usage, throttle, marker)
    rights: Mapping[Role, tuple[Acl, ...]] = {
        "job": (
            Acl("topic", usage, "Read"),
            Acl("topic", usage, "DescribeConfigs"),
            Acl("topic", throttle, "Read"),
            Acl("topic", throttle, "Write"),
            Acl("topic", throttle, "DescribeConfigs"),
            Acl("topic", marker, "DescribeConfigs"),
            *marker_acls(f"kquota-{names.job}", marker),
        ),
        "meter": (Acl("topic", usage, "Write"), *marker_acls(METER_IDENTITY, marker)),
        "gate": (Acl("topic", throttle, "Read"),),
        "operator": tuple(
            Acl("topic", topic, operation)
            for topic in all_topics
            for operation in ("Create", "Describe", "DescribeConfigs")
        ),
        "import": (DESCRIBE_QUOTAS,),
        "sync": (DESCRIBE_QUOTAS, ALTER_QUOTAS),
    }
    return rights[role]


def grant_commands(acls: Iterable[Acl], principal: str, bootstrap_servers: str) -> list[str]:
    """The kafka-acls commands that grant them, one per resource."""
    commands = []
    for (resource, name), same in groupby(sorted(acls), lambda acl: (acl.resource, acl.name)):
        words = [f"kafka-acls --bootstrap-server {bootstrap_servers} --add --allow-principal {quote(principal)}"]
        words += [f"--operation {acl.operation}" for acl in same]
        words.append("--cluster" if resource == "cluster" else f"--{resource} {quote(name)}")
        commands.append(" ".join(words))
    return commands


class PermissionMissing(Unreachable):
    """A broker knows the client and refuses what it wants to do; the fix is the commands that grant it."""

    def __init__(self, acls: Sequence[Acl], principal: str, bootstrap_servers: str) -> None:
        self.acls = tuple(acls)
        rights = ", ".join(map(str, acls))
        super().__init__(
            f"'{principal}' is not allowed {rights}; the Kafka broker at {bootstrap_servers} refuses it",
            " && ".join(grant_commands(acls, principal, bootstrap_servers)),
        )
