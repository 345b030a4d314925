"""What a job stands on: `kquota doctor`, `status`, `config`, `jars`, `tables` and `mode`."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from pipeline.cli.options import FileSource, JobSource, Output, Source, TablesSource, as_iso, source_of
from pipeline.cli.output import Layout, is_table, print_rows, remark, say
from pipeline.cli.quotas import read_in_force
from pipeline.clock import wall_ms
from pipeline.command_line import command_text
from pipeline.errors import UsageError
from pipeline.settings.model import Settings, flat, origins
from pipeline.tables.port import full_address, table_uri
from quota.entity import label

if TYPE_CHECKING:
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

    quotas = f"v{found.quotas} in force"
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
        ("sync", sync),
        ("kafka", found.bootstrap_servers or "not given"),
        ("tables", found.tables),
    ]


def _broker_hold_text(clients: int, longest: Mapping[str, str | None]) -> str:
    from pipeline.dashboard.state import client_text
    from pipeline.tables.throttles import count_text

    who = client_text(longest["user"] or "", longest["client_id"])
    return f"{count_text(0, clients)} by their brokers, longest {who}: {longest['held_by_brokers']}"


def _nearest_text(found: "JobStatus") -> str:
    from pipeline.dashboard.state import client_text, times_text

    row = found.nearest
    if row is None:
        return "no rates yet" if not found.rates_at_ms else "no client used anything under a quota lately"
    sensor = label(row["sensor_user"], row["sensor_client_id"])
    share = f"{times_text(row['share'])} its {row['quota_type']}{' (shadow)' if row['mode'] == 'shadow' else ''}"
    who = client_text(row["user"], row["client_id"])
    return f"{who} at {share}, by the quota of {sensor}, as of {as_iso(found.rates_at_ms)} UTC"


def _job_text(health: "Health") -> str:
    up = f"up, process {health.process}" if health.process else "down on this machine"
    return up if health.state == "live" else f"{up}. {health.title}. {health.text}"


def _batch_text(found: "JobStatus") -> str:
    health = found.health
    if health.last_batch_age_ms is None or health.lag_ms is None:
        return "none yet"
    epoch = f", time epoch {found.time_epoch}" if found.time_epoch else ""
    ahead = f"its time is {health.ahead_ms / 1000:.1f} s ahead of the wall clock"
    lag = f"its newest event was then {health.lag_ms / 1000:.1f} s old"
    age = f"{health.last_batch_age_ms / 1000:.1f} s ago"
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


def create(source: TablesSource, output: Output = "table") -> None:
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
