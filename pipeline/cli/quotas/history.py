"""`kquota quotas history`, `diff`, `at` and `rollback`: earlier versions of the quotas."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import JobSource, Output, QuotasOutput, TablesSource, parse_instant
from pipeline.cli.output import Layout, is_table, print_rows, remark
from pipeline.cli.quotas.edit import CHANGES, EditOptions, change_line
from pipeline.cli.quotas.entity import Entities
from pipeline.cli.quotas.show import print_quotas
from pipeline.cli.quotas.sync import print_broker_differences
from pipeline.clock import wall_ms
from pipeline.errors import UsageError

if TYPE_CHECKING:
    from pipeline.tables.quotas.history import QuotaVersion

_SHOWN_CHANGES: Final = 3
_VERSIONS: Final = Layout(dropped_first=("host",), texts=("reason", "changes"))


def history(
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many versions, newest first.", min=1)] = 20,
    source: TablesSource,
    output: Output = "table",
) -> None:
    """Print the versions of the quota table: when, who, from where, why, and old → new of every value.

    The table shows the first changes of a version; -o json and `quotas diff` show all.
    """
    from pipeline.tables.quotas.history import versions

    found = versions(source.quota_table(), limit)
    print_rows([_short(version) if is_table(output) else _full(version) for version in found], output, _VERSIONS)


def diff(
    old: Annotated[int | None, typer.Argument(help="A version; by default the one before NEW.")] = None,
    new: Annotated[int | None, typer.Argument(help="A version; by default the newest.")] = None,
    *,
    brokers: Annotated[
        bool, typer.Option("--brokers", help="Compare what the brokers hold with what the table wants there.")
    ] = False,
    source: JobSource,
    output: Output = "table",
) -> None:
    """Print every value that differs between two versions of the quotas, or between them and the brokers.

    With --brokers: what `kquota quotas sync` would write now, and what it leaves alone because others wrote it.
    """
    from pipeline.tables.quotas.history import differences

    if brokers:
        if old is not None:
            message = "OLD and --brokers contradict each other"
            raise UsageError(message, "leave out one of them")
        print_broker_differences(source, output)
        return
    table = source.quota_table()
    after = table.read(new)
    before = table.read(old if old is not None else max(after.version - 1, 0))
    changes = differences(before.rows, after.rows)
    print_rows([change_line(one) if is_table(output) else one.as_row() for one in changes], output, CHANGES)
    mode = f", mode {before.mode} → {after.mode}" if before.mode != after.mode else ""
    remark(f"quotas v{before.version} → v{after.version}, values that differ: {len(changes)}{mode}")


def at(
    time: Annotated[str, typer.Argument(help="ISO 8601, UTC if it has no offset, or an age: -15m, -2h, 3d.")],
    entity: Entities,
    source: TablesSource,
    output: QuotasOutput = "kafka",
) -> None:
    """Print the quotas as they were at a time, as `describe` does."""
    from pipeline.tables.quotas.history import version_at

    instant = datetime.fromtimestamp(parse_instant("TIME", time, wall_ms()) / 1000, UTC)
    table = source.quota_table()
    print_quotas(table, version_at(table, instant), entity, output)


def rollback(
    version: Annotated[int, typer.Argument(help="The version to go back to.", min=0)], edit: EditOptions
) -> None:
    """Write the quotas of an earlier version as a new version; nothing of the history is lost.

    The table's mode (`kquota mode`) stays as it is.
    """
    rows = edit.source.quota_table().read(version).rows
    reason = f"rollback to v{version}" + (f": {edit.reason}" if edit.reason else "")
    edit._replace(reason=reason).make(lambda _rows: rows, once_stored=rows)


def _full(version: "QuotaVersion") -> dict[str, Any]:
    audit = version.commit.audit
    return {
        "version": version.commit.version,
        "committed_at": version.commit.committed_at.isoformat(timespec="milliseconds"),
        "operation": version.commit.operation,
        **{name: getattr(audit, name, None) for name in ("actor", "host", "tool_version", "reason")},
        "mode": {"old": version.mode[0], "new": version.mode[1]},
        "changes": [change.as_row() for change in version.changes],
    }


def _short(version: "QuotaVersion") -> dict[str, Any]:
    from pipeline.tables.quotas.history import entity_texts

    full = _full(version)
    shown = entity_texts(version.changes[:_SHOWN_CHANGES])
    if version.mode[0] != version.mode[1]:
        shown.insert(0, f"mode of all {version.mode[0]} → {version.mode[1]}")
    more = len(version.changes) - _SHOWN_CHANGES
    changes = "; ".join([*shown, *([f"and {more} more"] if more > 0 else [])])
    made_by = full["operation"].lower() if version.commit.audit is None else ""
    return {
        "version": full["version"],
        "committed_at": f"{version.commit.committed_at:%Y-%m-%d %H:%M:%S}",
        **{name: full[name] for name in ("actor", "host", "reason")},
        "changes": changes or made_by,
    }
