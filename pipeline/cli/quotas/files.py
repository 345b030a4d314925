"""`kquota quotas export`, `import` and `apply`: quotas as JSON or YAML, for rpk and for git, and those of a cluster."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import BootstrapServers, CommandConfig, Source, TablesSource
from pipeline.cli.output import format_option, print_document, remark
from pipeline.cli.quotas.edit import Change, EditOptions
from pipeline.cli.quotas.show import read_in_force
from pipeline.errors import PipelineError, Refused, UsageError
from pipeline.text_file import read_text_file

if TYPE_CHECKING:
    from pipeline.tables.quotas.files import DeclaredQuota

_SCALES: Final = ("keep", "brokers")
_DIFFERENT: Final = 1
_TROUBLE: Final = 2

AllowEmpty = Annotated[
    bool, typer.Option("--allow-empty", help="Allow a file without quotas to delete all quotas of the table.")
]


def export(
    *,
    source: TablesSource,
    version: Annotated[int | None, typer.Option("--version", help="As of this version.")] = None,
    output: Annotated[str, format_option("json or yaml.", ("json", "yaml"))] = "yaml",
) -> None:
    """Print all quotas as `rpk cluster quotas describe` does; `apply` and `import` read it back."""
    from pipeline.tables.quotas.files import to_document

    table = source.quota_table()
    state = read_in_force(table) if version is None else table.read(version)
    print_document(to_document(state.rows), output)
    remark(f"quotas v{state.version}: {len(state.rows)} entities")


def apply(
    file: Annotated[str, typer.Option("-f", "--file", help="JSON or YAML; - reads standard input.")],
    *,
    prune: Annotated[bool, typer.Option("--prune", help="Delete quotas that the file does not name.")] = False,
    allow_empty: AllowEmpty = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if anything differs, above 1 on errors, like diff.")
    ] = False,
    edit: EditOptions,
) -> None:
    """Change the table to what a file declares, in one commit, and print the changes.

    An entity of the file gets exactly the bounds named there. Its mode, owner and note stay if the file does not name
    them. Entities that are not in the file stay, unless --prune is given. A file that would leave no quota at all is
    refused without --allow-empty.
    """
    try:
        done = edit.make(_applier(_read("--file", file), prune=prune, allow_empty=allow_empty))
    except PipelineError as exc:
        if exit_code and exc.exit_code == _DIFFERENT:
            exc.exit_code = _TROUBLE
        raise
    if exit_code and done.rows != done.before.rows:
        raise typer.Exit(_DIFFERENT)


def import_(
    source: Annotated[
        str | None, typer.Option("-f", "--file", "--from", help="A file, or the JSON or YAML itself.")
    ] = None,
    *,
    from_cluster: Annotated[
        bool,
        typer.Option(
            "--from-cluster", help="Take the quotas that the cluster's brokers enforce. Other quotas of the table stay."
        ),
    ] = False,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="keep|brokers",
            help="With --from-cluster: keep each bound as it is, or multiply it by the number of brokers.",
            show_default="keep",
        ),
    ] = None,
    bootstrap_server: BootstrapServers = None,
    command_config: CommandConfig = None,
    no_confirm: Annotated[bool, typer.Option("--no-confirm", help="Do not ask for confirmation.")] = False,
    allow_empty: AllowEmpty = False,
    edit: EditOptions,
) -> None:
    """Replace all quotas by those of a file, as `rpk cluster quotas import` does: others are deleted.

    With --from-cluster take over the quotas that Kafka's brokers enforce, instead; others stay. What the table cannot
    hold, as quotas of ips, is listed. Both show the changes and ask before they write; without a terminal --no-confirm
    must be given. Nothing is written if the table was edited before the answer.
    """
    _refuse_mixed(source, from_cluster, scale, bootstrap_server)
    if not (no_confirm or edit.dry_run or sys.stdin.isatty()):
        msg = "cannot ask for confirmation: standard input is not a terminal"
        raise UsageError(msg, "give --no-confirm, or see first what would change: --dry-run")
    cluster = Source(edit.source.config, bootstrap_server, command_config)
    declared = _read("--from", source) if source is not None else _read_cluster(cluster, scale or _SCALES[0])
    confirms = not (no_confirm or edit.dry_run)
    change = _applier(declared, prune=not from_cluster, allow_empty=allow_empty or confirms)
    done = edit._replace(dry_run=edit.dry_run or confirms).make(change)
    if from_cluster:
        named = {(quota.user, quota.client_id) for quota in declared}
        others = sum((row["user"], row["client_id"]) not in named for row in done.before.rows)
        if others:
            remark(f"quotas of other entities, which stay in the table: {others}")
    if confirms and done.rows != done.before.rows:
        typer.confirm("Import these quotas?", abort=True, err=True)
        edit._replace(if_version=done.version).make(change)


def _refuse_mixed(source: str | None, from_cluster: bool, scale: str | None, bootstrap_server: str | None) -> None:
    """Refuse flags that name two places to import from, or none, or that have no effect."""
    if from_cluster == (source is not None):
        given = "both are" if from_cluster else "neither is"
        msg = f"give either --from or --from-cluster; {given} given"
        raise UsageError(msg, "give --from FILE, or --from-cluster with --bootstrap-server")
    for option, value in (("--scale", scale), ("--bootstrap-server", bootstrap_server)):
        if value is not None and not from_cluster:
            msg = f"{option} works only with --from-cluster"
            raise UsageError(msg, f"leave out {option}")
    if scale not in {None, *_SCALES}:
        msg = f"unknown scale {scale}; use {', '.join(_SCALES)}"
        raise UsageError(msg, f"for example --scale {_SCALES[0]}")


def _read_cluster(source: Source, scale: str) -> "list[DeclaredQuota]":
    """The quotas of a cluster, for the table. Prints the factor and what is not imported on stderr."""
    from pipeline.brokers.native import NativeQuotas, imported
    from pipeline.cluster.access import ClusterAccess

    access = ClusterAccess.from_settings(source.settings().kafka)
    with NativeQuotas(access) as native:
        quotas, brokers = native.describe(), len(native.broker_ids())
    factor = brokers if scale == "brokers" else 1
    declared, left_out = imported(quotas, factor)
    remark(f"{access.bootstrap_servers}: brokers {brokers}, entities with quotas {len(quotas)}")
    remark(f"every bound × {factor} (--scale {scale})")
    for line in left_out:
        remark(f"not imported: {line}")
    return declared


def _applier(declared: "Sequence[DeclaredQuota]", *, prune: bool, allow_empty: bool) -> Change:
    from pipeline.tables.quotas.files import applied

    def change(rows: Sequence[dict[str, Any]]) -> Sequence[Any]:
        left = applied(rows, declared, prune=prune)
        if rows and not left and not allow_empty:
            msg = f"quotas were not changed: the file would delete all {len(rows)} quotas of the table and leave none"
            raise Refused(msg, "correct the file, or repeat the command with --allow-empty to delete them all")
        return left

    return change


def _read(option: str, given: str) -> "list[DeclaredQuota]":
    from pipeline.tables.quotas.files import from_text

    if given == "-":
        return from_text(sys.stdin.read(), "standard input")
    if option == "--from" and any(sign in given for sign in "{:\n") and not os.path.isfile(given):
        return from_text(given, option)
    return from_text(read_text_file(option, Path(given)), given)
