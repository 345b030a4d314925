"""Makes an edit of the quota table, or shows as a dry run what it would change and for which clients."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import flags
from pipeline.cli.output import Layout
from pipeline.errors import printable
from quota.entity import label

if TYPE_CHECKING:
    from pipeline.settings.model import Settings
    from pipeline.tables.quotas.table import QuotaEdit

Reason = Annotated[str, typer.Option("--reason", help="Why; stored with the edit.")]
IfVersion = Annotated[
    int | None,
    typer.Option("--if-version", help="Edit only if the table has this version; else exit with 4.", show_default=False),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Show changes and affected clients; save nothing."),
]

CHANGES: Final = Layout(("action", "entity", "value", "old", "new"), texts=("entity", "old", "new"))
_MOVED: Final = Layout(dropped_first=("old_level", "new_level", "old_mode", "new_mode"))


def make_edit(
    change: Callable[[Sequence[dict[str, Any]]], Sequence[Mapping[str, Any]]],
    *,
    answer: str | None,
    reason: str,
    if_version: int | None,
    dry_run: bool,
    config: Path | None,
    tables: str | None,
    output: str,
    once_stored: Sequence[Mapping[str, Any]] = (),
) -> "QuotaEdit":
    """Make an edit, or only plan it, and print the result.

    Args:
        answer: The line that `-o kafka` prints; None for commands that kafka-configs does not have.
        if_version: The version the table must have; None = any.
        dry_run: Write nothing. The changes are printed as a table even with `-o kafka`, which has no form for them.
        output: kafka (if there is an answer), or one of `pipeline.cli.output.FORMATS`.

    Raises:
        TableMissing: There is no quota table; an edit never creates it.
    """
    from pipeline.settings.loading import load_settings
    from pipeline.tables.from_settings import open_quota_table
    from pipeline.tables.quotas.history import differences, entity_texts
    from pipeline.tables.quotas.table import local_audit

    settings = load_settings(config, flags(tables=tables))
    table = open_quota_table(settings.tables)
    if dry_run:
        edit = table.plan(change, if_version, once_stored)
    else:
        edit = table.edit(change, local_audit(reason), if_version, once_stored)
    if output == "kafka" and not dry_run:
        # Kafka's line names only a part of a pair, so stderr has the changes. stdout is as Kafka's.
        sys.stdout.write(f"{printable(str(answer))}\n")
        texts = entity_texts(differences(edit.before.rows, edit.rows))
        sys.stderr.write("".join(f"{printable(text)}\n" for text in texts))
    else:
        print_edit(settings, edit, "table" if output == "kafka" else output, with_clients=dry_run)
    changed = edit.rows != edit.before.rows
    note = "dry run, nothing was written" if dry_run else "" if changed else "nothing to change"
    sys.stderr.write(f"quotas v{edit.version}{f', {note}' if note else ''}\n")
    return edit


def print_edit(settings: "Settings", edit: "QuotaEdit", output: str, *, with_clients: bool) -> None:
    """Print every value that an edit changes, and on request the live clients that get another level or bound."""
    from pipeline.cli.output import is_table, print_rows
    from pipeline.tables.quotas.history import differences

    changes = differences(edit.before.rows, edit.rows)
    clients = _moved_clients(settings, edit) if with_clients else []
    if not is_table(output):
        rows = [change.as_row() for change in changes]
        document = {
            "version": edit.version,
            "previous_version": edit.before.version,
            "dry_run": with_clients,
            "changes": rows,
        }
        print_rows(rows, output, document={**document, "clients": clients} if with_clients else document)
        return
    print_rows([change_line(change) for change in changes], output, CHANGES)
    if with_clients and clients:
        sys.stdout.write("\n")
        print_rows(clients, output, _MOVED, shown=_moved_line)
    elif with_clients:
        sys.stderr.write("no live client changes its level or bound\n")


def change_line(change: Any) -> dict[str, Any]:
    """A difference as a row of the printed table."""
    from pipeline.tables.quotas.history import shown

    return {
        "action": change.action,
        "entity": label(change.user, change.client_id),
        "value": change.column,
        "old": shown(change.column, change.old),
        "new": shown(change.column, change.new),
    }


def _moved_line(client: Mapping[str, Any]) -> dict[str, Any]:
    from pipeline.tables.quotas.history import shown

    bounds = ("old_bound", "new_bound")
    return {**client, **{name: shown(client["quota_type"], client[name]) for name in bounds}}


def _moved_clients(settings: "Settings", edit: "QuotaEdit") -> list[dict[str, Any]]:
    from pipeline.tables.address import table_uri
    from pipeline.tables.reading import live_clients

    clients = live_clients(table_uri(settings.tables.root, "usage"))
    if not clients.num_rows:
        return []
    from quota.effective import standing_changes
    from quota.snapshot import QuotaSnapshot

    mode: Any = "shadow" if edit.before.mode == "shadow" else "enforce"
    before, after = (
        QuotaSnapshot.from_rows(rows, version=version, mode=mode)
        for rows, version in ((edit.before.rows, 0), (edit.rows, 1))
    )
    return standing_changes(clients, before, after)
