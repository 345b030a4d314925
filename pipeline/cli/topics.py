"""`kquota topics`: create the three topics, and check existing ones.

The Kafka client takes 0.3 s to import, so it is imported where it is used, and `--help` never waits for it.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pipeline.cli.options import BootstrapServers, CommandConfig, Output
from pipeline.cli.output import is_table, print_rows
from pipeline.cli.table_layout import Layout

app = typer.Typer(help="Create and check the topics of the pipeline.", no_args_is_help=True)

_CREATED: Final = Layout(dropped_first=("settings",), texts=("settings",))
_FINDINGS: Final = Layout(
    ("topic", "severity", "what", "got", "wanted"),
    dropped_first=("wanted", "got"),
    texts=("what", "got", "wanted"),
)

Cores = Annotated[
    int | None, typer.Option(min=1, help="Cores of the job; default: of this machine.", show_default=False)
]
LongestThrottleMs = Annotated[int, typer.Option(min=1, help="Largest cap of a throttle.")]
UsageTopic = Annotated[str, typer.Option(help="Name of the usage topic.")]
ThrottleTopic = Annotated[str, typer.Option(help="Name of the throttle topic.")]
MarkerTopic = Annotated[str, typer.Option(help="Name of the marker topic.")]


@app.command()
def create(
    bootstrap_server: BootstrapServers = None,
    command_config: CommandConfig = None,
    cores: Cores = None,
    longest_throttle_ms: LongestThrottleMs = 12_000,
    replication_factor: Annotated[int, typer.Option(min=-1, help="-1: the cluster's default.")] = -1,
    usage_topic: UsageTopic = "quota.usage.v1",
    throttle_topic: ThrottleTopic = "quota.throttle.v1",
    marker_topic: MarkerTopic = "quota.marker.v1",
    output: Output = "table",
) -> None:
    """Create the topics that are missing, then check all three. Can be repeated; existing topics are not changed.

    Exit codes: 0 all three are as they must be; 5 an existing one is not; 6 the cluster does not answer.
    """
    from pipeline.cluster import topics
    from pipeline.cluster.acls import Acl
    from pipeline.cluster.permissions import permission_missing

    specs = topics.topic_specs(
        cores or os.cpu_count() or 1, longest_throttle_ms, usage_topic, throttle_topic, marker_topic
    )
    with _connected(bootstrap_server, command_config) as (address, admin, options):
        try:
            done = topics.create_topics(admin, specs, replication_factor)
        except topics.TopicNotCreated as exc:
            wanted = [Acl("topic", exc.topic, "Create")]
            raise permission_missing(exc.__cause__, wanted, options, address) or exc from exc
        _refuse_unpermitted(admin, specs, options, address)
        findings = topics.check_topics(admin, specs, address)
    rows = [
        {"topic": spec.name, "partitions": spec.partitions, "settings": _settings(spec), "result": done[spec.name]}
        for spec in specs
    ]
    print_rows(rows, output, _CREATED)
    for finding in findings:
        typer.echo(f"{finding.severity}: {finding}. To mend it: {finding.remedy}", err=True)
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(topics.TopicsUnfit.exit_code)


@app.command()
def check(
    bootstrap_server: BootstrapServers = None,
    command_config: CommandConfig = None,
    cores: Cores = None,
    longest_throttle_ms: LongestThrottleMs = 12_000,
    usage_topic: UsageTopic = "quota.usage.v1",
    throttle_topic: ThrottleTopic = "quota.throttle.v1",
    marker_topic: MarkerTopic = "quota.marker.v1",
    acls: Annotated[
        bool, typer.Option("--acls", help="Print the kafka-acls commands each role needs instead; asks no cluster.")
    ] = False,
    principal: Annotated[
        str | None, typer.Option(help="With --acls: who gets the rights, as User:kquota.", show_default=False)
    ] = None,
    role: Annotated[
        list[str] | None, typer.Option(help="With --acls: only job, meter, gate or operator; may be repeated.")
    ] = None,
    job: Annotated[str, typer.Option(help="With --acls: name of the job.")] = "kquota",
    output: Output = "table",
) -> None:
    """Print what is wrong with the topics, and the command that corrects it.

    Exit codes: 0 nothing, or warnings only; 5 the job would refuse to start; 6 the cluster does not answer, or
    does not let this user see the topics.
    """
    from pipeline.cluster import topics

    if acls or principal or role:
        from pipeline.cli.acls import print_acls
        from pipeline.cluster.acls import Names

        address = bootstrap_server or _address_in(command_config) or "BROKER:9092"
        print_acls(role, principal, Names(usage_topic, throttle_topic, marker_topic, job), address, output)
        return
    specs = topics.topic_specs(
        cores or os.cpu_count() or 1, longest_throttle_ms, usage_topic, throttle_topic, marker_topic
    )
    with _connected(bootstrap_server, command_config) as (address, admin, options):
        _refuse_unpermitted(admin, specs, options, address)
        findings = topics.check_topics(admin, specs, address)
    print_rows([asdict(finding) for finding in findings], output, _FINDINGS)
    if is_table(output):
        # Below the table, where a narrow terminal does not cut them.
        for remedy in dict.fromkeys(finding.remedy for finding in findings):
            typer.echo(remedy)
    if not findings:
        typer.echo(f"the topics at {address} are as they must be", err=True)
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(topics.TopicsUnfit.exit_code)


@contextmanager
def _connected(bootstrap_server: str | None, command_config: Path | None) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    from kafka import KafkaAdminClient

    from pipeline.cluster.client_properties import command_line_options
    from pipeline.cluster.connecting import as_cluster_error, open_client

    address, options = command_line_options(bootstrap_server, command_config)
    admin: Any = open_client(KafkaAdminClient, address, **{"client_id": "kquota-topics"} | options)
    with closing(admin), as_cluster_error(address):
        yield address, admin, options


def _address_in(command_config: Path | None) -> str | None:
    if command_config is None:
        return None
    from pipeline.cluster.properties_file import read_properties

    return read_properties(command_config).get("bootstrap.servers")


def _refuse_unpermitted(admin: Any, specs: Iterable[Any], options: dict[str, Any], address: str) -> None:
    """Check the rights first: Kafka reports a topic that the user may not describe as missing."""
    from pipeline.cluster.acls import Acl
    from pipeline.cluster.permissions import refuse_unpermitted

    wanted = [Acl("topic", spec.name, operation) for spec in specs for operation in ("Describe", "DescribeConfigs")]
    refuse_unpermitted(admin, wanted, options, address)


def _settings(spec: Any) -> str:
    return " ".join(f"{key}={value}" for key, value in {**spec.required, **spec.advised}.items())
