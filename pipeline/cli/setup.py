"""What a job stands on: `kquota doctor`, `status`, `config`, `jars`, `tables`, `topics` and `mode`."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from pipeline.cli.options import ClusterSource, FileSource, JobSource, Output, Source, TablesSource, as_iso, source_of
from pipeline.cli.output import Layout, is_table, print_rows, remark, say
from pipeline.cli.quotas import read_in_force
from pipeline.clock import seconds, wall_ms
from pipeline.cluster.acls import ROLES, Acl, Names, acls_of, grant_commands
from pipeline.command_line import command_text
from pipeline.errors import Refused, TopicNotCreated, UsageError
from pipeline.settings.model import KafkaSettings, Settings, flat, origins
from pipeline.tables.port import full_address, table_uri
from quota.entity import label

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

    from pipeline.job.status import Health, JobStatus


def doctor(source: JobSource) -> None:
    """Check Java, jars, disk, tables, clock, quotas, checkpoint, cluster and topics; one line each, with a fix.

    Exit codes: 0 no errors; 1 at least one error. Without --bootstrap-server the cluster is not checked.
    """
    from pipeline.job.diagnosis import diagnose

    wrong = 0
    for finding in diagnose(source.settings()):
        sign = {"ok": "ok   ", "warning": "warn ", "error": "ERROR"}[finding.severity]
        say(f"{sign} {finding.subject:<9} {finding.text}")
        wrong += finding.severity == "error"
    if wrong:
        raise typer.Exit(1)


# `kquota status`.


def status(
    source: Annotated[Source, source_of("config", "bootstrap_server", "tables")], output: Output = "table"
) -> None:
    """Print whether job and sync run, the last batch, the quotas, who is held, who is nearest to one, and addresses.

    Reads the tables and what lies next to them, not the cluster.
    Exit codes: 0 the job is up; 1 it is down.
    """
    from pipeline.job.status import status_of
    from pipeline.tables.broker_quotas import running_sync

    settings = source.settings()
    found = status_of(settings, wall_ms())
    sync = running_sync(settings.tables.root)
    if not is_table(output):
        document = {**asdict(found), "sync_process": sync}
        print_rows([document], output, document=document)
    else:
        lines = _lines(found, "none on this machine" if sync is None else f"up, process {sync}")
        say(*(f"{subject:<7} {text}" for subject, text in lines))
    # Without a lock of this machine a job that writes batches runs on another one.
    if found.health.process is None and found.health.state != "live":
        raise typer.Exit(1)


_SHOWN: Final = 3


def _lines(found: "JobStatus", sync: str) -> list[tuple[str, str]]:
    from pipeline.tables.throttles import count_text

    quotas = f"v{found.quotas}{f', tenants v{found.tenants_version}' if found.tenants else ''} in force"
    if found.last_batch_quotas not in {None, found.quotas}:
        quotas += f", the last batch was decided with v{found.last_batch_quotas}"
    if found.newest_quotas != found.quotas:
        quotas += f"; v{found.newest_quotas} is newer and not valid"
    held = count_text(found.held_users, found.held_clients)
    if found.longest_broker_hold is not None:
        held += f" by kquota, {_broker_hold_text(found.broker_held_clients, found.longest_broker_hold)}"
    if found.one_by_one:
        some = ", ".join(found.one_by_one[:_SHOWN]) + (" and others" if len(found.one_by_one) > _SHOWN else "")
        held += f"; of user {some} each client on its own: a row gives all or too many client-ids a sensor of their own"
    return [
        ("job", f"{found.job}: {_job_text(found.health)}"),
        ("batch", _batch_text(found)),
        ("quotas", quotas),
        ("mode", found.mode),
        ("held", held),
        ("nearest", _nearest_text(found)),
        *([("tenants", _tenants_text(found))] if found.tenants else []),
        ("sync", sync),
        ("kafka", found.bootstrap_servers or "not given"),
        ("tables", found.tables),
    ]


def _broker_hold_text(clients: int, longest: Mapping[str, str | None]) -> str:
    from pipeline.dashboard.state import client_text
    from pipeline.tables.throttles import count_text

    who = client_text(longest["user"] or "", longest["client_id"])
    return f"{count_text(0, clients)} by their brokers, longest {who}: {longest['held_by_brokers']}"


def _tenants_text(found: "JobStatus") -> str:
    full = ", ".join(found.full_tenants[:_SHOWN])
    more = len(found.full_tenants) - _SHOWN
    at_bound = f"at their bound: {full}{f' and {more} more' if more > 0 else ''}" if full else "none is at its bound"
    return f"{found.tenants}, {at_bound}"


def _nearest_text(found: "JobStatus") -> str:
    from pipeline.dashboard.state import client_text, times_text
    from quota.tenants import MEMBER_LEVEL

    row = found.nearest
    if row is None:
        return "no rates yet" if not found.rates_at_ms else "no client used anything under a quota lately"
    is_named = row["level"] != MEMBER_LEVEL
    by = f"the quota of {label(row['sensor_user'], row['sensor_client_id'])}" if is_named else f"tenant {row['tenant']}"
    share = f"{times_text(row['share'])} its {row['quota_type']}{' (shadow)' if row['mode'] == 'shadow' else ''}"
    who = client_text(row["user"], row["client_id"])
    return f"{who} at {share}, by {by}, as of {as_iso(found.rates_at_ms)} UTC"


def _job_text(health: "Health") -> str:
    up = f"up, process {health.process}" if health.process else "down on this machine"
    return up if health.state == "live" else f"{up}. {health.title}. {health.text}"


def _batch_text(found: "JobStatus") -> str:
    health = found.health
    if health.last_batch_age_ms is None or health.lag_ms is None:
        return "none yet"
    epoch = f", time epoch {found.time_epoch}" if found.time_epoch else ""
    ahead = f"its time is {seconds(health.ahead_ms)} ahead of the wall clock"
    lag = f"its newest event was then {seconds(health.lag_ms)} old"
    age = f"{seconds(health.last_batch_age_ms)} ago"
    return f"{found.last_batch_id}, {age}{epoch}; {ahead if health.ahead_ms else lag}"


# `kquota config`.


def show(source: FileSource, output: Output = "table") -> None:
    """Print every setting with its value and where it comes from; secrets are masked."""
    values = flat(source.settings().model_dump(mode="json"))
    where = origins(source.config)
    rows = [{"key": key, "value": value, "from": where.get(key, "default")} for key, value in values.items()]
    print_rows(rows, output, Layout(texts=("value",), names=frozenset({"from"})))


def schema() -> None:
    """Print the JSON Schema of the settings file."""
    sys.stdout.write(json.dumps(Settings.model_json_schema(), indent=2) + "\n")  # ASCII


# `kquota jars`.

WithSet = Annotated[
    Literal["s3"] | None,
    typer.Option("--with", help="An optional set too: s3, for Spark's own access to s3://.", show_default=False),
]


def fetch_jars(with_set: WithSet = None) -> None:
    """Fetch every locked jar that is missing or altered. Prints one summary line. Can be repeated.

    By mvn if it is on PATH, else by the Ivy inside pyspark. Exit code 6: one could not be fetched.
    """
    from pipeline.jvm import jars

    wanted = jars.JarStore(jars.jars_of(*([with_set] if with_set else ())))
    fetched = wanted.fetch(remark)
    say(f"{fetched} fetched, {len(wanted.locked) - fetched} from cache")


def jar_paths() -> None:
    """Print the paths of Spark's connectors in one line with commas, as `spark-submit --jars` takes them.

    Each is compared with the lock first. Exit code 1 when one is missing or altered.
    """
    from pipeline.jvm.jars import spark_jars

    say(",".join(str(jar) for jar in spark_jars()))


def create_tables(source: TablesSource, output: Output = "table") -> None:
    """Create the tables that are missing, and print the address of each. Can be repeated; existing tables stay.

    `kquota run` and `kquota demo` do the same when they start. No other command creates a table.
    """
    from pipeline.tables.layout import TABLES, create_tables

    root = source.settings().tables.root
    created = create_tables(root)
    results = {name: "created" if name in created else "exists" for name in TABLES}
    rows = [
        {"table": name, "result": result, "address": full_address(table_uri(root, name))}
        for name, result in results.items()
    ]
    print_rows(rows, output, Layout(names=frozenset({"address"})))


def views(
    source: TablesSource,
    schema: Annotated[
        str, typer.Option("--schema", help="Where to register tables and views: schema, or catalog.schema.")
    ] = "kquota",
    quota_history: Annotated[
        bool, typer.Option("--quota-history", help="The views of quota edits instead; not for Unity Catalog.")
    ] = False,
) -> None:
    """Print Spark SQL that makes views over the tables: who is throttled and why, usage, chargeback, health.

    Nothing is run. The text is for spark-sql -f, and for an editor or a warehouse of Databricks.
    """
    from pipeline.tables.layout import QUOTA_HISTORY, VIEWS, view_sql

    root = source.settings().tables.root
    say(*view_sql(QUOTA_HISTORY if quota_history else VIEWS, root, schema).splitlines())


# `kquota mode`.

_MODES = ("enforce", "shadow")


def mode(
    wanted: Annotated[str | None, typer.Argument(metavar="[enforce|shadow]", help="The new mode.")] = None,
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept with the change.")] = "",
    source: TablesSource,
    output: Output = "table",
) -> None:
    """Print the mode of all quotas and the table it is set in, or set it; a running job follows within one trigger.

    In shadow mode every throttle is released at once and no client is throttled; decisions are recorded.
    A quota whose own mode is shadow or exempt keeps it in both modes.
    """
    from pipeline.tables.quotas.table import local_audit

    if wanted not in {None, *_MODES}:
        msg = f"unknown mode {wanted}; use {', '.join(_MODES)}"
        raise UsageError(msg, f"see the mode: {command_text('mode')}; set it: {command_text('mode', 'shadow')}")
    table = source.quota_table()
    if wanted is not None:
        table.set_mode(wanted, local_audit(reason))
    state, address = read_in_force(table), full_address(table.uri)
    if is_table(output):
        say(state.mode)
        remark(f"quotas v{state.version} of {address}")
    else:
        document = {"mode": state.mode, "version": state.version, "table": address}
        print_rows([document], output, document=document)


# The topics. The Kafka client takes 0.3 s to import, so it is imported where it is used: `--help` never waits for it.


_CREATED: Final = Layout(dropped_first=("settings",), texts=("settings",))
_FINDINGS: Final = Layout(
    ("topic", "severity", "what", "got", "wanted"), dropped_first=("wanted", "got"), texts=("what", "got", "wanted")
)

Cores = Annotated[
    int | None, typer.Option(min=1, help="Cores of the job; default: of this machine.", show_default=False)
]


def create_topics(
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
        {"topic": spec.name, "partitions": spec.partitions, "settings": _spec_text(spec), "result": done[spec.name]}
        for spec in specs
    ]
    print_rows(rows, output, _CREATED)
    remark(*(f"{finding.severity}: {finding}. Fix: {finding.fix}" for finding in findings))
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(Refused.exit_code)


def check_topics(
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


def _spec_text(spec: Any) -> str:
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
