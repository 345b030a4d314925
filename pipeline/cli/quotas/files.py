"""`kquota quotas export`, `import` and `apply`: quotas as JSON or YAML, for rpk and for git."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.options import ConfigFile, Output, TablesRoot, quota_table
from pipeline.cli.quotas.edit import DryRun, IfVersion, Reason, make_edit
from pipeline.cli.quotas.errors import QuotaUsage, WouldDeleteAll
from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pipeline.tables.quotas.file import DeclaredQuota

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
    from pipeline.tables.quotas.file import to_document

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
    source: Annotated[str, typer.Option("-f", "--file", "--from", help="A file, or the JSON or YAML itself.")],
    no_confirm: Annotated[bool, typer.Option("--no-confirm", help="Do not ask.")] = False,
    allow_empty: AllowEmpty = False,
    reason: Reason = "",
    if_version: IfVersion = None,
    dry_run: DryRun = False,
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Replace all quotas by those of a file, as `rpk cluster quotas import` does: others are deleted.

    Shows the changes and asks before it writes; without a terminal --no-confirm must be given. Nothing is
    written if the table was edited before the answer.
    """
    is_text = any(sign in source for sign in "{:\n")
    declared = _parsed(source, "--from") if is_text and not os.path.isfile(source) else _read("--from", source)
    ask = not (no_confirm or dry_run)
    if ask and not sys.stdin.isatty():
        msg = "'--no-confirm' must be given where standard input is no terminal"
        raise QuotaUsage(msg, "give --no-confirm, or see first what would change: --dry-run")

    def edit(*, only_show: bool, at_version: int | None) -> Any:
        return make_edit(
            _applier(declared, prune=True, allow_empty=allow_empty or ask),
            answer=None,
            reason=reason,
            if_version=at_version,
            dry_run=only_show,
            config=config,
            tables=tables,
            output=output,
        )

    if ask:
        plan = edit(only_show=True, at_version=if_version)
        if plan.rows == plan.before.rows:
            return
        typer.confirm("Import these quotas?", abort=True, err=True)
        if_version = plan.version
    edit(only_show=dry_run, at_version=if_version)


def _applier(declared: "Sequence[DeclaredQuota]", *, prune: bool, allow_empty: bool) -> Any:
    """The change that a file asks for, as a function from old rows to new rows. It may refuse to delete all rows."""
    from pipeline.tables.quotas.file import applied

    def change(rows: Sequence[dict[str, Any]]) -> Sequence[Any]:
        left = applied(rows, declared, prune=prune)
        if rows and not left and not allow_empty:
            raise WouldDeleteAll(len(rows))
        return left

    return change


def _read(option: str, file: str) -> "list[DeclaredQuota]":
    from pipeline.text_file import read_text_file

    if file == "-":
        return _parsed(sys.stdin.read(), "standard input")
    return _parsed(read_text_file(option, Path(file)), file)


def _parsed(text: str, name: str) -> "list[DeclaredQuota]":
    from pipeline.tables.quotas.file_reading import from_text

    return from_text(text, name)
