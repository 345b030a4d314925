"""`kquota topics`: create the topics of the job, check existing ones, and print the ACLs of each role.

The Kafka client takes 0.3 s to import, so it is imported where it is used, and `--help` never waits for it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import ClusterSource, Output
from pipeline.cli.output import Layout, is_table, print_rows, remark, say
from pipeline.cluster.acls import ROLES, Acl, Names, acls_of, grant_commands
from pipeline.errors import Refused, TopicNotCreated, UsageError
from pipeline.settings.model import KafkaSettings

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

_CREATED: Final = Layout(dropped_first=("settings",), texts=("settings",))
_FINDINGS: Final = Layout(
    ("topic", "severity", "what", "got", "wanted"), dropped_first=("wanted", "got"), texts=("what", "got", "wanted")
)

Cores = Annotated[
    int | None, typer.Option(min=1, help="Cores of the job; default: of this machine.", show_default=False)
]


def create(
    source: ClusterSource,
    *,
    cores: Cores = None,
    replication_factor: Annotated[int, typer.Option(min=-1, help="-1: the cluster's default.")] = -1,
    output: Output = "table",
) -> None:
    """Create the topics that are missing, then check all of them. Can be repeated; existing topics are not changed.

    Exit codes: 0 all are as they must be; 5 an existing one is not; 6 the cluster does not answer.
    """
    from pipeline.cluster import topics
    from pipeline.cluster.connecting import permission_missing
    from pipeline.cluster.topics import wanted_topics

    settings = source.settings()
    specs = wanted_topics(settings, cores)
    with _connected(settings.kafka) as (address, admin, options):
        try:
            done = topics.create_topics(admin, specs, replication_factor)
        except TopicNotCreated as exc:
            wanted = [Acl("topic", exc.topic, "Create")]
            raise permission_missing(exc.__cause__, wanted, options, address) or exc from exc
        _refuse_unpermitted(admin, specs, options, address)
        findings = topics.check_topics(admin, specs, address)
    rows = [
        {"topic": spec.name, "partitions": spec.partitions, "settings": _settings(spec), "result": done[spec.name]}
        for spec in specs
    ]
    print_rows(rows, output, _CREATED)
    remark(*(f"{finding.severity}: {finding}. Fix: {finding.fix}" for finding in findings))
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(Refused.exit_code)


def check(
    source: ClusterSource,
    *,
    cores: Cores = None,
    acls: Annotated[
        bool, typer.Option("--acls", help="Print the kafka-acls commands each role needs, without a cluster.")
    ] = False,
    principal: Annotated[str | None, typer.Option(help="With --acls: who gets the rights, as User:kquota.")] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(help="With --acls: only job, meter, gate, operator, import or sync; may be repeated."),
    ] = None,
    job: Annotated[str | None, typer.Option(help="With --acls: name of the job.")] = None,
    output: Output = "table",
) -> None:
    """Print what is wrong with the topics, and the command that corrects it.

    Exit codes: 0 nothing, or warnings only; 5 the job would refuse to start; 6 the cluster does not answer, or
    does not let this user see the topics.
    """
    from pipeline.cluster import topics
    from pipeline.cluster.topics import resource_names, wanted_topics

    settings = source.settings(job=job)
    kafka = settings.kafka
    if acls or principal or role:
        if not is_table(output):
            message, fix = "--acls, --principal and --role print commands, and no rows", "leave out -o"
            raise UsageError(message, fix)
        _print_acls(role, principal, resource_names(settings), kafka.bootstrap_servers or "BROKER:9092")
        return
    specs = wanted_topics(settings, cores)
    with _connected(kafka) as (address, admin, options):
        _refuse_unpermitted(admin, specs, options, address)
        findings = topics.check_topics(admin, specs, address)
    print_rows([asdict(finding) for finding in findings], output, _FINDINGS)
    if is_table(output):
        # Below the table, where a narrow terminal does not cut them.
        say(*dict.fromkeys(finding.fix for finding in findings))
    if not findings:
        remark(f"the topics at {address} are as they must be")
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(Refused.exit_code)


@contextmanager
def _connected(kafka: "KafkaSettings") -> "Iterator[tuple[str, KafkaAdminClient, dict[str, Any]]]":
    from pipeline.cluster.connecting import ClusterAccess, as_cluster_error

    access = ClusterAccess.from_settings(kafka)
    with access.admin() as admin, as_cluster_error(access.bootstrap_servers):
        yield access.bootstrap_servers, admin, access.client_options()


def _refuse_unpermitted(admin: Any, specs: Iterable[Any], options: dict[str, Any], address: str) -> None:
    """Check the rights first: Kafka reports a topic that the user may not describe as missing."""
    from pipeline.cluster.connecting import refuse_unpermitted

    wanted = [Acl("topic", spec.name, operation) for spec in specs for operation in ("Describe", "DescribeConfigs")]
    refuse_unpermitted(admin, wanted, options, address)


def _settings(spec: Any) -> str:
    return " ".join(f"{key}={value}" for key, value in {**spec.required, **spec.advised}.items())


# `check --acls`: the rights of each role, as the commands that grant them.


def _print_acls(roles: Sequence[str] | None, principal: str | None, names: Names, bootstrap_servers: str) -> None:
    """Print the kafka-acls commands.

    Args:
        roles: The roles to print; None or empty prints all.
        principal: Who gets the rights; None = `User:kquota-<role>` for each role.
    """
    unknown = [role for role in roles or () if role not in ROLES]
    if unknown:
        msg = f"unknown role {unknown[0]!r}; roles are {', '.join(ROLES)}"
        raise UsageError(msg, f"for example --role {next(iter(ROLES))}")
    for role, purpose in ROLES.items():
        if not roles or role in roles:
            acls = acls_of(role, names)
            needs = "" if acls else "; as the settings are, it needs no right"
            who = principal or f"User:kquota-{role}"
            say(f"# {role}: {purpose}{needs}", *grant_commands(acls, who, bootstrap_servers))
