"""`kquota quotas sync`: keep the brokers' own quotas by the quota table and the usage."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import BootstrapServers, CommandConfig, ConfigFile, MetricsPort, Output, TablesRoot, flags
from pipeline.cli.output import Layout
from quota.entity import label

if TYPE_CHECKING:
    from pipeline.settings.model import Settings
    from quota.broker_levels.writes import Change, Drift

_PLAN: Final = Layout(("action", "entity", "value", "old", "new", "why"), texts=("entity", "old", "new", "why"))


def sync(
    config: ConfigFile = None,
    bootstrap_server: BootstrapServers = None,
    command_config: CommandConfig = None,
    tables: TablesRoot = None,
    once: Annotated[bool, typer.Option("--once", help="Do one period and end; the changes are in the log.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what it would change, and what others changed; nothing is saved.")
    ] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Take over values that others wrote; they are given back at the end.")
    ] = False,
    restore: Annotated[
        bool, typer.Option("--restore", help="At a clean stop, give every broker the whole bound.")
    ] = False,
    user: Annotated[
        list[str] | None,
        typer.Option(
            help="Put only the rows of this user, pairs with client-ids among them, on the brokers; repeatable.",
            show_default="all",
        ),
    ] = None,
    period_ms: Annotated[
        int | None, typer.Option("--period", metavar="MS", help="Time between two periods.", show_default=False)
    ] = None,
    metrics_port: MetricsPort = None,
    output: Output = "table",
) -> None:
    """Keep the quotas that the brokers themselves enforce, so that clients need not follow kquota.

    In scope broker every broker gets the bound of the table. In scope cluster all brokers get one level per entity, so
    that together they give its bound; it follows the usage that the job records. Only what kquota wrote itself is
    changed, and every change is in the table broker_quotas.

    Runs until SIGTERM or Ctrl-C. Ends with 4 if another sync of the same tables runs. With --once: 5 if the brokers
    refuse a value.
    """
    from pipeline.log import set_up_logging
    from pipeline.settings.loading import load_settings

    given = flags(
        bootstrap_server,
        command_config,
        tables,
        sync={"period_ms": period_ms, "restore_on_stop": True if restore else None, "users": user or None},
        metrics={"port": metrics_port},
    )
    settings = load_settings(config, given)
    if dry_run:
        _print_plan(settings, adopt, output)
        return
    set_up_logging(settings.log_level)
    if once:
        _once(settings, adopt)
        return
    from pipeline.brokers.running import SyncMetrics, run_sync
    from pipeline.cli.options import wait_until_stopped
    from pipeline.clock import SystemClock
    from pipeline.metrics import metrics_endpoint, new_registry

    registry = new_registry("sync")
    metrics = SyncMetrics(registry, SystemClock())
    with wait_until_stopped() as wait, metrics_endpoint(settings.metrics, registry):
        run_sync(settings, wait, adopt=adopt, metrics=metrics)


def print_broker_differences(
    config: Path | None, bootstrap_server: str | None, command_config: Path | None, tables: str | None, output: str
) -> None:
    """Print what the brokers hold and what the table wants there, for `kquota quotas diff --brokers`.

    Args:
        bootstrap_server: Of the cluster; None = from the settings.
        command_config: client.properties; None = from the settings.
        tables: Root of the tables; None = from the settings.
        output: One of `pipeline.cli.output.FORMATS`.
    """
    from pipeline.brokers.running import inspect
    from pipeline.settings.loading import load_settings

    plan = inspect(load_settings(config, flags(bootstrap_server, command_config, tables)))
    rows = plan_rows(plan.changes, plan.drifts)
    print_plan_rows(rows, output)
    sys.stderr.write(f"brokers of {plan.cluster} → quotas v{plan.quota_version}, values that differ: {len(rows)}\n")


def plan_rows(changes: "tuple[Change, ...]", drifts: "tuple[Drift, ...]") -> list[dict[str, Any]]:
    """What a sync would write, and what it would leave alone, as rows for programs."""
    rows = [
        {
            "action": "add" if change.old is None else "remove" if change.new is None else "alter",
            **change.key._asdict(),
            "old": change.old,
            "new": change.new,
            "bound": change.bound,
            "cause": change.cause,
            "demand": change.demand,
        }
        for change in changes
    ]
    left = [
        {
            "action": "leave",
            **drift.key._asdict(),
            "old": drift.theirs,
            "new": drift.wanted,
            "bound": None,
            "cause": drift.kind.value,
            "demand": {},
        }
        for drift in drifts
    ]
    return rows + left


def print_plan_rows(rows: list[dict[str, Any]], output: str, document: Any = None) -> None:
    """Print rows of `plan_rows`."""
    from pipeline.cli.output import print_rows

    print_rows(rows, output, _PLAN, shown=_readable, document=document)


def _print_plan(settings: "Settings", adopt: bool, output: str) -> None:
    from pipeline.brokers.running import inspect

    plan = inspect(settings, adopt=adopt)
    rows = plan_rows(plan.changes, plan.drifts)
    refused = [{**one.key._asdict(), "by": one.by, "reason": one.reason} for one in plan.refused]
    document = {"cluster": plan.cluster, "quota_version": plan.quota_version, "changes": rows, "refused": refused}
    print_plan_rows(rows, output, document)
    sys.stderr.write(
        f"quotas v{plan.quota_version}, dry run, nothing was written; changes: {len(plan.changes)}, values of others "
        f"that stay: {len(plan.drifts)}, values that are kquota's: {len(plan.owned)}\n"
    )


def _once(settings: "Settings", adopt: bool) -> None:
    from pipeline.brokers.running import sync_once

    control = sync_once(settings, adopt=adopt)
    if any(one.by == "broker" for one in control.refused):
        raise typer.Exit(5)


def _readable(row: Any) -> dict[str, Any]:
    from quota.broker_levels.writes import WORDS
    from quota.units import bound_text

    old, new = (None if row[end] is None else bound_text(row["quota_type"], row[end]) for end in ("old", "new"))
    left = {"foreign": "others wrote it; --adopt takes it over", "changed": "others changed it; --adopt takes it over"}
    return {
        "action": row["action"],
        "entity": label(row["user"], row["client_id"]),
        "value": row["quota_type"],
        "old": old,
        "new": new,
        "why": left.get(row["cause"]) or WORDS[row["cause"]],
        "bound": row["bound"],
    }
