"""`kquota mode`: enforce the quotas, or only record what they would do."""

import sys
from typing import Annotated

import typer

from pipeline.cli.options import ConfigFile, Output, TablesRoot, flags
from pipeline.cli.quotas.errors import QuotaUsage
from pipeline.command_line import command_text

_MODES = ("enforce", "shadow")


def mode(
    wanted: Annotated[str | None, typer.Argument(metavar="[enforce|shadow]", help="The new mode.")] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept with the change.")] = "",
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Print the mode of all quotas and the table it is set in, or set it; a running job follows within one trigger.

    In shadow mode every throttle is released at once and nobody is throttled; decisions are recorded as they would be.
    A quota whose own mode is shadow or exempt keeps it in both modes.
    """
    from pipeline.cli.output import is_table, print_rows
    from pipeline.settings.loading import load_settings
    from pipeline.tables.address import full_address
    from pipeline.tables.audit import local_audit
    from pipeline.tables.from_settings import open_quota_table

    if wanted not in {None, *_MODES}:
        msg = f"'mode' must be one of {', '.join(_MODES)}; got {wanted}"
        raise QuotaUsage(msg, f"see the mode: {command_text('mode')}; set it: {command_text('mode', 'shadow')}")
    settings = load_settings(config, flags(tables=tables))
    table = open_quota_table(settings.tables)
    if wanted is not None:
        table.set_mode(wanted, local_audit(reason))
    state, address = table.read(), full_address(table.uri)
    if is_table(output):
        sys.stdout.write(f"{state.mode}\n")
        sys.stderr.write(f"quotas v{state.version} of {address}\n")
    else:
        document = {"mode": state.mode, "version": state.version, "table": address}
        print_rows([document], output, document=document)
