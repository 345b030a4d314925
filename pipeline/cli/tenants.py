"""Tenants, seen and edited: `kquota tenants describe`, `alter`, `delete`, `apply`, `history`, `diff` and `rollback`.

They work as the commands of the quotas, with the same options. And `link`, to the page of a tenant's team.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.entity import refuse_empty
from pipeline.cli.options import Output, Source, TablesSource, parse_instant
from pipeline.cli.output import FORMATS, Layout, Row, format_option, print_rows, remark, say
from pipeline.cli.quota_edits import (
    Change,
    Configs,
    DeclaredFile,
    EditOptions,
    ExitCode,
    ToVersion,
    apply_file,
    only_one,
    parse_configs,
    roll_back,
)
from pipeline.cli.quotas import HowMany, NewVersion, OldVersion, checked_in_force, print_diff, print_history
from pipeline.cli.services import DEFAULT_PORT, TokenFile
from pipeline.clock import wall_ms
from pipeline.command_line import command_text
from pipeline.errors import NotFound, UsageError
from pipeline.tables.quotas.edit import refuse_absent, shown
from pipeline.tables.quotas.tenants import (
    CLIENT_IDS,
    PATTERNS,
    TENANT_MODES,
    TENANT_ROWS,
    USERS,
    TenantChange,
    altered_tenants,
    tenant_column,
    tenant_text,
)
from quota.units import Mistakes

if TYPE_CHECKING:
    from pipeline.tables.quotas.table import TenantTableState

_LONGEST_LINK_MS: Final = 3_652 * 86_400_000
_SETTINGS: Final = tuple(column for column in TENANT_ROWS.settings if column not in PATTERNS)
_CONFIGS: Final = Configs(TENANT_ROWS, _SETTINGS, "tenants", TENANT_MODES, tenant_column)
_TENANTS: Final = Layout(
    ("tenant", *TENANT_ROWS.settings),
    dropped_first=("note", "owner", *(column for column in TENANT_ROWS.bounds if column.startswith("member_"))),
    texts=("note", *PATTERNS),
)

Name = Annotated[str, typer.Argument(metavar="TENANT", help="The name of the tenant.")]
TenantsOutput = Annotated[str, format_option("words, table, wide, name, json or yaml.", ("words", *FORMATS, "name"))]


def _patterns(option: str, help_text: str) -> Any:
    return typer.Option(option, metavar="PATTERN", help=help_text, show_default=False)


def describe(
    name: Annotated[str | None, typer.Argument(metavar="TENANT", help="Only this tenant.", show_default=False)] = None,
    *,
    source: TablesSource,
    output: TenantsOutput = "words",
) -> None:
    """Print the tenants, each in one line: its members, what they may use, and whether they lend.

    Exits with 3 if there are none.
    """
    state = _in_force(source)
    rows = [row for row in state.rows if name in {None, row["tenant"]}]
    if output == "words":
        say(*map(tenant_text, rows))
    else:
        print_rows(rows, output, _TENANTS, shown=_readable, name=lambda row: str(row["tenant"]))
    remark(f"tenants v{state.version}")
    if source.quota_table().read().mode == "shadow":
        remark(f"none of them throttles while all quotas are in shadow mode, see {command_text('mode')}")
    if name is not None and not rows:
        raise _unknown(name, state.rows)
    if not rows:
        raise typer.Exit(NotFound.exit_code)


def _in_force(source: Source) -> "TenantTableState":
    from pipeline.tables.quotas.table import TenantTableState

    found: TenantTableState = checked_in_force(source.edited_table(TENANT_ROWS), None, TenantTableState.tenants)
    return found


def _readable(row: Row) -> Row:
    return {column: shown(column, value) for column, value in row.items()}


def _unknown(name: str, rows: Sequence[Row]) -> NotFound:
    known = ", ".join(row["tenant"] for row in rows)
    instead = f"; there are {known}" if known else "; there are none"
    return NotFound(f"no tenant {name}{instead}", f"see which exist: {command_text('tenants', 'describe')}")


def alter(
    name: Name,
    *,
    add_config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V,…",
            help="k=v,k2=v2 of producer_byte_rate, consumer_byte_rate (10MB/s), request_percentage (200%): what the "
            "members may use together; the same with member. before it: what each user without a quota of its own may "
            "use; lend (true, false), ceiling (3), mode (enforce, shadow), owner, note; \\[a,b] keeps commas together.",
        ),
    ] = None,
    add_user: Annotated[
        list[str] | None, _patterns("--add-user", "A user, or the beginning of users with * at its end; repeatable.")
    ] = None,
    remove_user: Annotated[list[str] | None, _patterns("--remove-user", "A pattern of users to remove.")] = None,
    add_client_id: Annotated[
        list[str] | None,
        _patterns("--add-client-id", "A client-id, or the beginning of client-ids with * at its end; repeatable."),
    ] = None,
    remove_client_id: Annotated[
        list[str] | None, _patterns("--remove-client-id", "A pattern of client-ids to remove.")
    ] = None,
    delete_config: Annotated[list[str] | None, typer.Option(metavar="K,…", help="The names of what to delete.")] = None,
    edit: EditOptions,
) -> None:
    """Change one tenant, or make it; a running job uses it from its next micro-batch on.

    A tenant has patterns and at least one bound. The most specific pattern of all tenants wins: user before client-id,
    a name before the beginning of one, the longer before the shorter. One pattern cannot be in two tenants.
    """
    refuse_empty("TENANT", [name])
    added = {USERS: add_user or (), CLIENT_IDS: add_client_id or ()}
    removed = {USERS: remove_user or (), CLIENT_IDS: remove_client_id or ()}
    change = _alteration(name, add_config, delete_config, added, removed)
    edit.show([edit.made(edit.source.edited_table(TENANT_ROWS), change)])


def _alteration(
    name: str,
    add_config: Sequence[str] | None,
    delete_config: Sequence[str] | None,
    added: Mapping[str, Sequence[str]],
    removed: Mapping[str, Sequence[str]],
) -> Change:
    given = {
        f"--{verb}-{part}": patterns[column]
        for verb, patterns in (("add", added), ("remove", removed))
        for column, part in PATTERNS.items()
    } | {"--delete-config": delete_config}
    for option, texts in given.items():
        refuse_empty(option, texts)
    added_config = only_one(add_config, "add-config")
    if added_config is None and not any(given.values()):
        msg = f"there is nothing to change: give --add-config or one of {', '.join(given)}"
        raise UsageError(msg, "for example --add-config producer_byte_rate=10MB/s --add-user 'team-a-*'")
    values, taken = parse_configs(added_config, delete_config, _CONFIGS, Mistakes())

    def change(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        before = next((row for row in rows if row["tenant"] == name), None)
        if before is None and not values and not any(added.values()):
            raise _unknown(name, rows)
        refuse_absent(TENANT_ROWS, before or {}, taken)
        return altered_tenants(rows, [TenantChange(name, values | taken, added, removed)])

    return change


def delete(name: Name, edit: EditOptions) -> None:
    """Delete one tenant. Its members have no common bound any more. Exits with 3 if there is none of that name."""

    def remove(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        rest = [row for row in rows if row["tenant"] != name]
        if len(rest) == len(rows):
            raise _unknown(name, rows)
        return rest

    edit.show([edit.made(edit.source.edited_table(TENANT_ROWS), remove)])


def apply(
    file: DeclaredFile,
    *,
    prune: Annotated[bool, typer.Option("--prune", help="Delete tenants that the file does not name.")] = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Allow a file without tenants to delete all tenants of the table.")
    ] = False,
    exit_code: ExitCode = False,
    edit: EditOptions,
) -> None:
    """Change the tenants to what a file declares, in one commit, and print the changes; its quotas are left out.

    A tenant of the file gets exactly the patterns and bounds named there. Its mode, owner and note stay if the file
    does not name them. Tenants that are not in the file stay, unless --prune is given.
    """
    apply_file(file, edit, (TENANT_ROWS,), prune=prune, allow_empty=allow_empty, exit_code=exit_code)


def history(
    *,
    limit: HowMany = 20,
    source: TablesSource,
    output: Output = "table",
) -> None:
    """Print the versions of the tenants: when, who, from where, why, and old → new of every value."""
    print_history(source.edited_table(TENANT_ROWS), limit, output)


def diff(
    old: OldVersion = None,
    new: NewVersion = None,
    *,
    source: TablesSource,
    output: Output = "table",
) -> None:
    """Print every value that differs between two versions of the tenants."""
    print_diff(source.edited_table(TENANT_ROWS), old, new, output)


def rollback(version: ToVersion, edit: EditOptions) -> None:
    """Write the tenants of an earlier version as a new version; nothing of the history is lost."""
    roll_back(edit, edit.source.edited_table(TENANT_ROWS), version)


def link(
    name: Annotated[
        str | None, typer.Argument(metavar="TENANT", help="The tenant of the page that it opens.", show_default=False)
    ] = None,
    *,
    user: Annotated[str | None, typer.Option(help="A user instead of a tenant.", show_default=False)] = None,
    until: Annotated[str, typer.Option(help="When it ends: 12h or 30d from now, or an ISO 8601 time.")] = "30d",
    address: Annotated[
        str, typer.Option(help="Where the team reaches the dashboard.")
    ] = f"http://127.0.0.1:{DEFAULT_PORT}",
    token_file: TokenFile = None,
    source: TablesSource,
) -> None:
    """Print a link to the page of one team: its use, its bound, who holds it, what to do, and nothing of others.

    It is signed with the dashboard's token. Who has it can look until it ends; another token ends all links.
    """
    from pipeline.dashboard.team import Kind, Team
    from pipeline.dashboard.views import TOKEN_VARIABLE
    from pipeline.tables.queries import newest_batch_under
    from pipeline.web import read_token

    if (name is None) == (user is None):
        msg = "a link is for one tenant, or for one user"
        raise UsageError(msg, f"for example: {command_text('tenants', 'link', 'team-a')}")
    refuse_empty("TENANT", [name or user or ""])
    token, now_ms = read_token(token_file, TOKEN_VARIABLE), wall_ms()
    if token is None:
        msg = "links are signed with the token of the dashboard, and there is none"
        raise UsageError(msg, f"give the dashboard and this command the same --token-file or {TOKEN_VARIABLE}")
    until_ms = parse_instant("--until", until, now_ms)
    until_ms = 2 * now_ms - until_ms if re.fullmatch(r"\d+[smhdw]", until) else until_ms
    if not now_ms < until_ms <= now_ms + _LONGEST_LINK_MS:
        msg = f"--until {until} is not within the next ten years"
        raise UsageError(msg, "for example --until 30d")
    if name is not None:
        rows = _in_force(source).rows
        if not any(row["tenant"] == name for row in rows):
            raise _unknown(name, rows)
    batch = newest_batch_under(source.settings().tables.root)
    if batch is None:
        msg = "which cluster these tables are of is not known before the first micro-batch"
        raise NotFound(msg, f"start the job: {command_text('run')}")
    kind: Kind = "user" if name is None else "tenant"
    say(Team(batch["cluster"], kind, name or user or "", until_ms).link(address, token))
