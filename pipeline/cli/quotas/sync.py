"""`kquota quotas sync`: keep the brokers' own quotas by the quota table and the usage."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import JobSource, MetricsPort, Output, Source, wait_until_stopped
from pipeline.cli.output import Layout, print_rows, remark
from pipeline.clock import SystemClock
from pipeline.errors import Refused
from pipeline.log import set_up_logging
from quota.entity import label
from quota.units import bound_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.settings.model import Settings
    from quota.broker_levels.writes import Change, Drift

_PLAN: Final = Layout(("action", "entity", "value", "old", "new", "why"), texts=("entity", "old", "new", "why"))


def sync(
    *,
    source: JobSource,
    once: Annotated[bool, typer.Option("--once", help="Do one period and end; the changes are in the log.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what it would change, and what others changed; nothing is saved.")
    ] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Take over values that others wrote; they are given back at the end.")
    ] = False,
    user: Annotated[
        list[str] | None,
        typer.Option(
            help="Put only the rows of this user, pairs with client-ids among them, on the brokers; repeatable.",
            show_default="all",
        ),
    ] = None,
    period_ms: Annotated[int | None, typer.Option("--period", metavar="MS", help="Time between two periods.")] = None,
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
    own = {"period_ms": period_ms, "users": user or None}
    settings = source.settings(sync=own, metrics={"port": metrics_port})
    if dry_run:
        _print_plan(settings, adopt, output)
        return
    from pipeline.brokers.running import SyncMetrics, run_sync, sync_once
    from pipeline.metrics import metrics_endpoint, new_registry

    set_up_logging(settings.log_level)
    if once:
        control = sync_once(settings, adopt=adopt)
        if any(one.by == "broker" for one in control.refused):
            raise typer.Exit(Refused.exit_code)
        return
    registry = new_registry("sync")
    metrics = SyncMetrics(registry, SystemClock())
    with wait_until_stopped() as wait, metrics_endpoint(settings.metrics, registry):
        run_sync(settings, wait, adopt=adopt, metrics=metrics)


def print_broker_differences(source: Source, output: str) -> None:
    """Print what the brokers hold and what the table wants there, for `kquota quotas diff --brokers`."""
    from pipeline.brokers.running import inspect

    plan = inspect(source.settings())
    print_changes(plan.changes, output, plan.drifts)
    differ = len(plan.changes) + len(plan.drifts)
    remark(f"brokers of {plan.cluster} → quotas v{plan.quota_version}, values that differ: {differ}")


def _print_plan(settings: "Settings", adopt: bool, output: str) -> None:
    from pipeline.brokers.running import inspect

    plan = inspect(settings, adopt=adopt)
    rows = _plan_rows(plan.changes, plan.drifts)
    refused = [{**one.key._asdict(), "by": one.by, "reason": one.reason} for one in plan.refused]
    document = {"cluster": plan.cluster, "quota_version": plan.quota_version, "changes": rows, "refused": refused}
    print_rows(rows, output, _PLAN, shown=_readable, document=document)
    remark(
        f"quotas v{plan.quota_version}, dry run, nothing was written; changes: {len(plan.changes)}, values of others "
        f"that stay: {len(plan.drifts)}, values that are kquota's: {len(plan.owned)}"
    )


def print_changes(changes: "Iterable[Change]", output: str, drifts: "Iterable[Drift]" = ()) -> None:
    """Print what would be written to brokers, and what others have written there."""
    print_rows(_plan_rows(changes, drifts), output, _PLAN, shown=_readable)


def _plan_rows(changes: "Iterable[Change]", drifts: "Iterable[Drift]") -> list[dict[str, Any]]:
    names = ("old", "new", "bound", "cause", "demand")
    return [
        {
            "action": "add" if change.old is None else "remove" if change.new is None else "alter",
            **change.key._asdict(),
            **{name: getattr(change, name) for name in names},
        }
        for change in changes
    ] + [
        {
            "action": "leave",
            **drift.key._asdict(),
            **dict(zip(names, (drift.theirs, drift.wanted, None, drift.kind.value, {}), strict=True)),
        }
        for drift in drifts
    ]


def _readable(row: Any) -> dict[str, Any]:
    from quota.broker_levels.writes import WORDS

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
