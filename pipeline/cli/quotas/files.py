"""`kquota quotas export`, `import` and `apply`: quotas as JSON or YAML, for rpk and for git, and those of a cluster."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import BootstrapServers, CommandConfig, ConfigFile, Output, TablesRoot, flags, quota_table
from pipeline.cli.quotas.edit import DryRun, IfVersion, Reason, make_edit
from pipeline.errors import PipelineError, Refused, UsageError, printable

if TYPE_CHECKING:
    from pipeline.tables.quotas.files import DeclaredQuota
    from pipeline.tables.quotas.table import QuotaEdit


# Reads the quotas that a cluster's brokers enforce, for `kquota quotas import --from-cluster`.

SCALES: Final = ("keep", "brokers")

FromCluster = Annotated[
    bool,
    typer.Option(
        "--from-cluster", help="Take the quotas that the cluster's brokers enforce. Other quotas of the table stay."
    ),
]
Scale = Annotated[
    str | None,
    typer.Option(
        "--scale",
        metavar="keep|brokers",
        help="With --from-cluster: keep each bound as it is, or multiply it by the number of brokers.",
        show_default="keep",
    ),
]


def refuse_mixed(source: str | None, from_cluster: bool, scale: str | None, bootstrap_server: str | None) -> None:
    """Refuse flags that name two places to import from, or none, or that have no effect.

    Args:
        source: Of `--from`; None = not given.
        from_cluster: Whether `--from-cluster` is given.
        scale: Of `--scale`; None = not given.

    Raises:
        UsageError: They do.
    """
    if from_cluster == (source is not None):
        given = "both are" if from_cluster else "neither is"
        msg = f"give either --from or --from-cluster; {given} given"
        raise UsageError(msg, "give --from FILE, or --from-cluster with --bootstrap-server")
    for option, value in (("--scale", scale), ("--bootstrap-server", bootstrap_server)):
        if value is not None and not from_cluster:
            msg = f"{option} works only with --from-cluster"
            raise UsageError(msg, f"leave out {option}")
    if scale not in {None, *SCALES}:
        msg = f"unknown scale {scale}; use {', '.join(SCALES)}"
        raise UsageError(msg, f"for example --scale {SCALES[0]}")


def read_cluster(
    config: Path | None, bootstrap_server: str | None, command_config: Path | None, scale: str | None
) -> "list[DeclaredQuota]":
    """The quotas of a cluster, for the table. Prints the factor and what is not imported on stderr.

    Args:
        bootstrap_server: Of the cluster; None = from the settings.
        command_config: client.properties; None = from the settings.
        scale: One of `SCALES`; None = keep.

    Raises:
        PipelineError: The settings have no address of the cluster, or it cannot be read.
    """
    from pipeline.brokers.native import NativeQuotas, imported
    from pipeline.cluster.access import ClusterAccess
    from pipeline.settings.loading import load_settings

    settings = load_settings(config, flags(bootstrap_server, command_config))
    access = ClusterAccess.from_settings(settings.kafka)
    with NativeQuotas(access) as native:
        quotas, brokers = native.describe(), len(native.broker_ids())
    factor = brokers if scale == "brokers" else 1
    found = imported(quotas, factor)
    _tell(f"{access.bootstrap_servers}: brokers {brokers}, entities with quotas {len(quotas)}")
    _tell(f"every bound × {factor} (--scale {scale or SCALES[0]})")
    for line in found.left_out:
        _tell(f"not imported: {line}")
    return list(found.declared)


def tell_others(rows: Iterable[Mapping[str, Any]], declared: "Iterable[DeclaredQuota]") -> None:
    """Say on stderr how many rows of the table are for entities of which the cluster has no quota."""
    named = {(quota.user, quota.client_id) for quota in declared}
    others = sum((row["user"], row["client_id"]) not in named for row in rows)
    if others:
        _tell(f"quotas of other entities, which stay in the table: {others}")


def _tell(text: str) -> None:
    sys.stderr.write(f"{printable(text)}\n")


AllowEmpty = Annotated[
    bool, typer.Option("--allow-empty", help="Allow a file without quotas to delete all quotas of the table.")
]

_DIFFERENT = 1
_TROUBLE = 2


def export(
    config: ConfigFile = None,
    tables: TablesRoot = None,
    version: Annotated[int | None, typer.Option("--version", help="As of this version.", show_default=False)] = None,
    output: Annotated[str, typer.Option("-o", "--output", help="json or yaml.")] = "yaml",
) -> None:
    """Print all quotas as `rpk cluster quotas describe` does; `apply` and `import` read it back."""
    from pipeline.cli.output import print_document
    from pipeline.tables.quotas.files import to_document

    state = quota_table(config, tables).read(version)
    print_document(to_document(state.rows), output)
    sys.stderr.write(f"quotas v{state.version}: {len(state.rows)} entities\n")


def apply(
    file: Annotated[str, typer.Option("-f", "--file", help="JSON or YAML; - reads standard input.")],
    prune: Annotated[bool, typer.Option("--prune", help="Delete quotas that the file does not name.")] = False,
    allow_empty: AllowEmpty = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if anything differs, above 1 on errors, like diff.")
    ] = False,
    reason: Reason = "",
    if_version: IfVersion = None,
    dry_run: DryRun = False,
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Change the table to what a file declares, in one commit, and print the changes.

    An entity of the file gets exactly the bounds named there. Its mode, owner and note stay if the file does not name
    them. Entities that are not in the file stay, unless --prune is given. A file that would leave no quota at all is
    refused without --allow-empty.
    """
    try:
        declared = _read("--file", file)
        edit = make_edit(
            _applier(declared, prune=prune, allow_empty=allow_empty),
            answer=None,
            reason=reason,
            if_version=if_version,
            dry_run=dry_run,
            config=config,
            tables=tables,
            output=output,
        )
    except PipelineError as exc:
        if exit_code and exc.exit_code == _DIFFERENT:
            exc.exit_code = _TROUBLE
        raise
    if exit_code and edit.rows != edit.before.rows:
        raise typer.Exit(_DIFFERENT)


def import_(
    source: Annotated[
        str | None,
        typer.Option("-f", "--file", "--from", help="A file, or the JSON or YAML itself.", show_default=False),
    ] = None,
    from_cluster: FromCluster = False,
    scale: Scale = None,
    bootstrap_server: BootstrapServers = None,
    command_config: CommandConfig = None,
    no_confirm: Annotated[bool, typer.Option("--no-confirm", help="Do not ask for confirmation.")] = False,
    allow_empty: AllowEmpty = False,
    reason: Reason = "",
    if_version: IfVersion = None,
    dry_run: DryRun = False,
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Replace all quotas by those of a file, as `rpk cluster quotas import` does: others are deleted.

    With --from-cluster take over the quotas that Kafka's brokers enforce, instead; others stay. What the table cannot
    hold, as quotas of ips, is listed. Both show the changes and ask before they write; without a terminal --no-confirm
    must be given. Nothing is written if the table was edited before the answer.
    """
    refuse_mixed(source, from_cluster, scale, bootstrap_server)
    if not (no_confirm or dry_run or sys.stdin.isatty()):
        msg = "cannot ask for confirmation: standard input is not a terminal"
        raise UsageError(msg, "give --no-confirm, or see first what would change: --dry-run")
    declared = _given(source) if source is not None else read_cluster(config, bootstrap_server, command_config, scale)

    def edit(*, only_show: bool, at_version: int | None, allow_empty: bool) -> "QuotaEdit":
        return make_edit(
            _applier(declared, prune=not from_cluster, allow_empty=allow_empty),
            answer=None,
            reason=reason,
            if_version=at_version,
            dry_run=only_show,
            config=config,
            tables=tables,
            output=output,
        )

    confirms = not (no_confirm or dry_run)
    done = edit(only_show=dry_run or confirms, at_version=if_version, allow_empty=allow_empty or confirms)
    if from_cluster:
        tell_others(done.before.rows, declared)
    if confirms and done.rows != done.before.rows:
        typer.confirm("Import these quotas?", abort=True, err=True)
        edit(only_show=False, at_version=done.version, allow_empty=True)


def _applier(declared: "Sequence[DeclaredQuota]", *, prune: bool, allow_empty: bool) -> Any:
    """The change to the rows of a file, as a function from old rows to new rows. It may refuse to delete all rows."""
    from pipeline.tables.quotas.files import applied

    def change(rows: Sequence[dict[str, Any]]) -> Sequence[Any]:
        left = applied(rows, declared, prune=prune)
        if rows and not left and not allow_empty:
            msg = f"quotas were not changed: the file would delete all {len(rows)} quotas of the table and leave none"
            raise Refused(msg, "correct the file, or repeat the command with --allow-empty to delete them all")
        return left

    return change


def _given(source: str) -> "list[DeclaredQuota]":
    """The quotas of `--from`: a file, or the text itself."""
    is_text = any(sign in source for sign in "{:\n")
    return _parsed(source, "--from") if is_text and not os.path.isfile(source) else _read("--from", source)


def _read(option: str, file: str) -> "list[DeclaredQuota]":
    from pipeline.text_file import read_text_file

    if file == "-":
        return _parsed(sys.stdin.read(), "standard input")
    return _parsed(read_text_file(option, Path(file)), file)


def _parsed(text: str, name: str) -> "list[DeclaredQuota]":
    from pipeline.tables.quotas.files import from_text

    return from_text(text, name)
