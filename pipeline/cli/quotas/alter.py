"""`kquota quotas alter` and `delete`: edits of one entity, with the answers of kafka-configs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pipeline.cli.options import ConfigFile, Output, QuotasOutput, TablesRoot, flags
from pipeline.cli.quotas.edit import DryRun, IfVersion, Reason, make_edit
from pipeline.cli.quotas.entity import EntityFilter, for_entity
from pipeline.command_line import command_text
from pipeline.errors import NotFound, UsageError
from quota.entity import label, may_apply

_SHOWN: Final = 5

Pairs = Annotated[
    list[str] | None,
    typer.Option(
        "--add-config",
        metavar="K=V,…",
        help="k=v,k2=v2 of producer_byte_rate, consumer_byte_rate (1048576, 1MB/s, 1MiB/s), request_percentage (50%), "
        "mode, owner, note; \\[a,b] keeps commas together.",
        show_default=False,
    ),
]
PairsFile = Annotated[
    Path | None,
    typer.Option("-f", "--file", "--add-config-file", help="A file with the same as lines of k=v.", show_default=False),
]
Keys = Annotated[
    list[str] | None,
    typer.Option("--delete-config", metavar="K,…", help="The names of what to delete.", show_default=False),
]


@for_entity
def alter(
    entity: EntityFilter,
    add_config: Pairs = None,
    add_config_file: PairsFile = None,
    delete_config: Keys = None,
    reason: Reason = "",
    if_version: IfVersion = None,
    dry_run: DryRun = False,
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: QuotasOutput = "kafka",
) -> None:
    """Change the quota of one entity; a running job uses it from its next micro-batch on.

    Flags and answers are those of kafka-configs --alter. The edit is one commit under the table's lock, with who made
    it, where, when and why. A quota without any bound is deleted, unless its mode is exempt.
    """
    change = _alteration(entity, _one(add_config, "add-config"), add_config_file, _one(delete_config, "delete-config"))
    make_edit(
        change,
        answer=entity.completed(),
        reason=reason,
        if_version=if_version,
        dry_run=dry_run,
        config=config,
        tables=tables,
        output=output,
    )


@for_entity
def delete(
    entity: EntityFilter,
    reason: Reason = "",
    if_version: IfVersion = None,
    dry_run: DryRun = False,
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: QuotasOutput = "kafka",
) -> None:
    """Delete the quota of one entity: all its bounds, its mode, owner and note. Exits with 3 if it has none."""

    def remove(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        rest = [row for row in rows if not entity.matches(row)]
        if len(rest) == len(rows):
            alike = [label(row["user"], row["client_id"]) for row in may_apply(rows, entity.user, entity.client_id)]
            raise _no_quota(label(entity.user, entity.client_id), alike)
        return rest

    make_edit(
        remove,
        answer=entity.completed(),
        reason=reason,
        if_version=if_version,
        dry_run=dry_run,
        config=config,
        tables=tables,
        output=output,
    )


def _no_quota(entity: str, alike: Sequence[str]) -> NotFound:
    """The error of an entity without a quota. `alike` are entities with one that can hold in its place."""
    shown = [*alike[:_SHOWN], *([f"{len(alike) - _SHOWN} more"] if len(alike) > _SHOWN else [])]
    instead = f"; there is one for {'; '.join(shown)}" if shown else ""
    return NotFound(f"no quota found for {entity}{instead}", f"see which exist: {command_text('quotas', 'describe')}")


def _alteration(
    entity: EntityFilter, added: str | None, added_file: Path | None, deleted: str | None
) -> Callable[[Sequence[dict[str, Any]]], list[dict[str, Any]]]:
    """The change that the flags describe, as a function from old rows to new rows."""
    from pipeline.cli.quotas.values import checked, parse_added, parse_deleted
    from pipeline.cluster.properties_file import parse_properties
    from pipeline.tables.quotas.edit import QuotaChange, altered, edit_refused, refuse_absent
    from pipeline.text_file import read_text_file
    from quota.units import Mistakes

    if added is not None and added_file is not None:
        msg = "Only one of --add-config or --add-config-file must be specified"
        raise UsageError(msg, f"put {added} into {added_file}, or give one of the two")
    if added is None and added_file is None and deleted is None:
        msg = "At least one of --add-config, --add-config-file, or --delete-config must be specified with --alter"
        raise UsageError(
            msg, "for example --add-config producer_byte_rate=1MB/s, or --delete-config producer_byte_rate"
        )
    mistakes = Mistakes()
    values: dict[str, Any] = {}
    if added is not None:
        values = parse_added(added, entity.names, mistakes.at("--add-config"))
    elif added_file is not None:
        text = read_text_file("--add-config-file", added_file)
        values = checked(parse_properties(text, str(added_file)), entity.names, mistakes.at(str(added_file)))
    taken = parse_deleted(deleted, entity.names, mistakes.at("--delete-config")) if deleted is not None else {}
    both = sorted(values.keys() & taken.keys())
    if both:
        mistakes.add(f"--add-config sets and --delete-config deletes {', '.join(both)}")
    if mistakes.found:
        raise edit_refused(mistakes.found)

    def change(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        refuse_absent(rows, entity.user, entity.client_id, taken)
        return altered(rows, [QuotaChange(entity.user, entity.client_id, {**values, **taken})])

    return change


def _one(values: Sequence[str] | None, option: str) -> str | None:
    """The value of an option that may be given once. A second one is refused, as by Kafka, not lost silently."""
    if values and len(values) > 1:
        msg = f"Found multiple arguments for option {option}, but you asked for only one"
        raise UsageError(msg, f"separate them by commas: --{option} '{','.join(values)}'")
    if values and not values[0]:
        msg = f"Option {option} requires an argument"
        raise UsageError(msg, f'see whether the variable in --{option} "$VALUES" is set')
    return values[0] if values else None


# `kquota quotas sql`: Spark SQL on the quota table.


def sql(
    statement: Annotated[str, typer.Argument(help="UPDATE, INSERT, DELETE or MERGE on the table `quotas`.")],
    reason: Reason = "",
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Run one Spark SQL statement on the quota table, under the same lock as every other edit.

    On a local disk no other SQL writer may touch the table at the same time: Spark and delta-rs do not see each
    other's commits in time there. In an object store the statement runs on a copy, and its outcome is one edit.
    """
    from pipeline.cli.output import print_rows
    from pipeline.settings.loading import load_settings
    from pipeline.stream.quota_sql import run_sql
    from pipeline.tables.quotas.table import local_audit

    settings = load_settings(config, flags(tables=tables))
    print_rows(run_sql(settings, statement, local_audit(reason)), output)
