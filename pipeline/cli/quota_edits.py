"""Edits of the quota table: `kquota quotas alter`, `delete`, `sql`, `apply`, `import` and `rollback`.

Each is one commit, and is printed. `alter` and `delete` have the flags and the answers of kafka-configs.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import typer

from pipeline.cli.entity import EntityFilter, OneEntity
from pipeline.cli.options import (
    Bundle,
    Output,
    QuotasOutput,
    Source,
    TablesSource,
    source_of,
)
from pipeline.cli.output import Layout, is_table, print_rows, remark, say
from pipeline.cli.quotas import CHANGES, change_line
from pipeline.command_line import command_text
from pipeline.documents import read_text_file
from pipeline.errors import NotFound, PipelineError, Refused, UsageError
from pipeline.settings.model import Settings
from pipeline.tables.quotas.edit import (
    LABELS,
    QUOTA_ROWS,
    QuotaChange,
    QuotaValues,
    RowKind,
    altered,
    edit_refused,
    refuse_absent,
)
from pipeline.tables.quotas.files import Declared, applied, from_text
from pipeline.tables.quotas.tenants import (
    TENANT_ROWS,
    USERS,
    TenantChange,
    altered_tenants,
    parse_setting,
    pattern_warnings,
)
from quota.entity import label, may_apply
from quota.snapshot import MODES
from quota.units import Mistakes, doubtful_bound

if TYPE_CHECKING:
    from pipeline.brokers.exports import Export
    from pipeline.tables.quotas.history import Difference
    from pipeline.tables.quotas.table import EditedTable, QuotaEdit, TableEdit


Rows = Sequence[Mapping[str, Any]]
Change = Callable[[Sequence[dict[str, Any]]], Rows]
"""An edit, as a function from the old rows of `quotas` to the new ones."""

_MOVED: Final = ("client", "type", "old", "new", "old_mode", "new_mode", "old_level", "new_level")
_ALIKE: Final = 5

Reason = Annotated[str, typer.Option(help="Why; stored with the edit.")]


class Edit(NamedTuple):
    """How an edit is made, by the options of its command.

    Attributes:
        if_version: The version the table must have; None = any.
        dry_run: Write nothing.
        output: kafka (if there is an answer), or one of `pipeline.cli.output.FORMATS`.
    """

    reason: str
    if_version: int | None
    dry_run: bool
    source: Source
    output: str

    def make(self, change: Change, answer: str | None = None, once_stored: Rows = ()) -> "QuotaEdit":
        """Edit the quotas, or only plan it, and print the result. The table must exist; see `QuotaTable.commit`.

        Args:
            answer: The line that `-o kafka` prints; None for commands that kafka-configs does not have. The changes of
                a dry run are printed as a table even then: Kafka has no form for them.
        """
        edit = self.made(self.source.quota_table(), change, once_stored)
        if self.output == "kafka" and not self.dry_run:
            # Kafka's line names only a part of a pair, so stderr has the changes. stdout is as Kafka's.
            from pipeline.tables.quotas.history import row_texts

            say(str(answer))
            remark(*row_texts(_changes_of(edit)), *(f"warning: {text}" for text in _edit_warnings(edit)))
            self._remark_versions([edit])
        else:
            self.show([edit])
        return edit

    def made(self, table: "EditedTable[Any]", change: Change, once_stored: Rows = ()) -> "TableEdit[Any]":
        """Edit a table, or only plan it. Prints nothing."""
        from pipeline.tables.quotas.table import local_audit

        if self.dry_run:
            return table.plan(change, self.if_version, once_stored)
        return table.commit(change, local_audit(self.reason), self.if_version, once_stored)

    def show(self, edits: "Sequence[TableEdit[Any]]") -> None:
        """Print every value that edits change, and of a dry run the live clients that get another level or bound."""
        output = "table" if self.output == "kafka" else self.output
        clients, warnings = _impact(edits, self.source.settings()) if self.dry_run else ([], [])
        of_edits = [text for edit in edits for text in _edit_warnings(edit)]
        if not is_table(output):
            documents = [self._document(edit) for edit in edits]
            of_clients = {"clients": clients, "warnings": [*_edit_warnings(edits[0]), *warnings]}
            others = {edit.before.kind.table: one for edit, one in zip(edits[1:], documents[1:], strict=True)}
            print_rows([], output, document=documents[0] | (of_clients if self.dry_run else {}) | others)
        else:
            print_rows([change_line(change) for edit in edits for change in _changes_of(edit)], output, CHANGES)
            if clients:
                say("")
                print_rows(clients, output, _moved_layout(clients), shown=_moved_line)
            elif self.dry_run:
                remark("no live client changes its level or bound")
            remark(*(f"warning: {text}" for text in (*of_edits, *warnings)))
        self._remark_versions(edits)

    def _document(self, edit: "TableEdit[Any]") -> dict[str, Any]:
        """An edit for programs."""
        rows = [change.as_row() for change in _changes_of(edit)]
        versions = {"version": edit.version, "previous_version": edit.before.version}
        return {**versions, "dry_run": self.dry_run, "changes": rows, "warnings": _edit_warnings(edit)}

    def _remark_versions(self, edits: "Iterable[TableEdit[Any]]") -> None:
        for edit in edits:
            note = ", dry run, nothing was written" if self.dry_run else "" if edit.has_changed else _UNCHANGED
            remark(f"{edit.before.kind.table} v{edit.version}{note}")


_UNCHANGED: Final = ", nothing to change"


def _impact(edits: "Sequence[TableEdit[Any]]", settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    from pipeline.replay.what_if import impact_of

    return impact_of(edits, settings)


def _edit_warnings(edit: "TableEdit[Any]") -> list[str]:
    """What is surely a mistake in an edit, by itself: a bound, or a pattern of a tenant."""
    kind = edit.before.kind
    bounds = [one for one in _changes_of(edit) if one.column in kind.bounds and one.new is not None]
    doubtful = [(one.label, doubtful_bound(one.column.removeprefix("member_"), one.new)) for one in bounds]
    of_patterns = pattern_warnings(edit.before.rows, edit.rows) if kind is TENANT_ROWS else []
    return [*(f"{label}: {text}" for label, text in doubtful if text), *of_patterns]


def _changes_of(edit: "TableEdit[Any]") -> "list[Difference]":
    from pipeline.tables.quotas.history import differences

    return differences(edit.before.rows, edit.rows, edit.before.kind)


_IF_VERSION: Final = typer.Option(help="Edit only if the table has this version; else exit with 4.", show_default=False)
_DRY_RUN: Final = typer.Option("--dry-run", help="Show changes, affected clients and warnings; save nothing.")


def _edit_flags(output: Any, default: str) -> Bundle:
    tables = source_of("config", "tables")

    def read(context: typer.Context, given: Mapping[str, Any]) -> Edit:
        source = tables.read(context, {name: given[name] for name in tables.options})
        return Edit(given["reason"], given["if_version"], given["dry_run"], source, given["output"])

    options = {
        "reason": (Reason, ""),
        "if_version": (Annotated[int | None, _IF_VERSION], None),
        "dry_run": (Annotated[bool, _DRY_RUN], False),
        **tables.options,
        "output": (output, default),
    }
    return Bundle(options, read)


EditOptions = Annotated[Edit, _edit_flags(Output, "table")]
KafkaEditOptions = Annotated[Edit, _edit_flags(QuotasOutput, "kafka")]


def alter(
    entity: OneEntity,
    *,
    add_config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V,…",
            help="k=v,k2=v2 of producer_byte_rate, consumer_byte_rate (1048576, 1MB/s, 1MiB/s), request_percentage "
            "(50%), mode, owner, note; \\[a,b] keeps commas together.",
        ),
    ] = None,
    add_config_file: Annotated[
        Path | None, typer.Option("-f", "--file", "--add-config-file", help="A file with the same as lines of k=v.")
    ] = None,
    delete_config: Annotated[list[str] | None, typer.Option(metavar="K,…", help="The names of what to delete.")] = None,
    edit: KafkaEditOptions,
) -> None:
    """Change the quota of one entity; a running job uses it from its next micro-batch on.

    Flags and answers are those of kafka-configs --alter. The edit is one commit under the table's lock, with who made
    it, where, when and why. A quota without any bound is deleted, unless its mode is exempt.
    """
    _refuse_valueless(delete_config, "delete-config")
    change = _alteration(entity, only_one(add_config, "add-config"), add_config_file, delete_config)
    edit.make(change, entity.completed())


def delete(entity: OneEntity, edit: KafkaEditOptions) -> None:
    """Delete the quota of one entity: all its bounds, its mode, owner and note. Exits with 3 if it has none."""

    def remove(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        rest = [row for row in rows if not entity.matches(row)]
        if len(rest) == len(rows):
            alike = [label(row["user"], row["client_id"]) for row in may_apply(rows, entity.user, entity.client_id)]
            more = [f"{len(alike) - _ALIKE} more"] if len(alike) > _ALIKE else []
            instead = f"; there is one for {'; '.join([*alike[:_ALIKE], *more])}" if alike else ""
            msg = f"no quota found for {label(entity.user, entity.client_id)}{instead}"
            raise NotFound(msg, f"see which exist: {command_text('quotas', 'describe')}")
        return rest

    edit.make(remove, entity.completed())


def sql(
    statement: Annotated[str, typer.Argument(help="UPDATE, INSERT, DELETE or MERGE on the table `quotas`.")],
    *,
    reason: Reason = "",
    source: TablesSource,
    output: Output = "table",
) -> None:
    """Run one Spark SQL statement on a copy of the quota table; the rows that it leaves are stored as one edit.

    Columns that you add have no effect, and a statement does not see them: every edit keeps them as they are, and a new
    row has null there.
    """
    from pipeline.stream.quota_sql import run_sql
    from pipeline.tables.quotas.table import QuotaTable, local_audit

    settings = source.settings()
    added = QuotaTable(settings.tables.root).columns_of_others()
    remark("Spark starts, which takes some ten seconds; then the statement runs")
    print_rows(run_sql(settings, statement, local_audit(reason)), output)
    if added:
        remark(f"note: columns that kquota does not know have no effect and are kept as they are: {', '.join(added)}")


def _alteration(
    entity: EntityFilter, added: str | None, added_file: Path | None, deleted: Sequence[str] | None
) -> Change:
    from pipeline.cluster.client_properties import parse_properties

    if added is not None and added_file is not None:
        msg = "Only one of --add-config or --add-config-file must be specified"
        raise UsageError(msg, f"put {added} into {added_file}, or give one of the two")
    if added is None and added_file is None and deleted is None:
        msg = "At least one of --add-config, --add-config-file, or --delete-config must be specified with --alter"
        fix = "for example --add-config producer_byte_rate=1MB/s, or --delete-config producer_byte_rate"
        raise UsageError(msg, fix)
    configs = Configs.of_entity(entity.names)
    mistakes = Mistakes()
    values: dict[str, Any] = {}
    if added_file is not None:
        text = read_text_file("--add-config-file", added_file)
        values = _checked(parse_properties(text, str(added_file)), configs, mistakes.at(str(added_file)))
    values, taken = parse_configs(added, deleted, configs, mistakes, values)

    def change(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        refuse_absent(QUOTA_ROWS, next(filter(entity.matches, rows), {}), taken)
        return altered(rows, [QuotaChange(entity.user, entity.client_id, {**values, **taken})])

    return change


class Configs(NamedTuple):
    """The names that `--add-config` and `--delete-config` take.

    Attributes:
        entities: `users`, `clients` or `tenants`.
        column_of: the column of a name.
    """

    kind: RowKind
    names: tuple[str, ...]
    entities: str
    modes: tuple[str, ...]
    column_of: Callable[[str], str] = str

    @classmethod
    def of_entity(cls, types: Collection[str]) -> "Configs":
        """Those of a quota entity, by the types of its parts."""
        return cls(QUOTA_ROWS, QUOTA_ROWS.settings, "clients" if "clients" in types else "users", MODES)


def parse_configs(
    added: str | None,
    deleted: Sequence[str] | None,
    configs: Configs,
    mistakes: Mistakes,
    values: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns that `--add-config` sets, with values that are set already, and those that `--delete-config` does.

    Raises:
        Refused: there are mistakes; it names all of them.
    """
    values = {**values}
    if added is not None:
        values |= parse_added(added, configs, mistakes.at("--add-config"))
    taken = _parse_deleted(deleted, configs, mistakes.at("--delete-config")) if deleted is not None else {}
    both = sorted(values.keys() & taken.keys())
    if both:
        mistakes.add(f"--add-config sets and --delete-config deletes {', '.join(both)}")
    if mistakes.found:
        raise edit_refused(mistakes.found, kind=configs.kind)
    return values, taken


def only_one(values: Sequence[str] | None, option: str) -> str | None:
    """The value of an option that may be given once. A second one is refused, as by Kafka, not lost silently."""
    if values and len(values) > 1:
        msg = f"Found multiple arguments for option {option}, but you asked for only one"
        raise UsageError(msg, f"separate them by commas: --{option} '{','.join(values)}'")
    _refuse_valueless(values, option)
    return values[0] if values else None


def _refuse_valueless(values: Sequence[str] | None, option: str) -> None:
    if values and not all(values):
        msg = f"Option {option} requires an argument"
        raise UsageError(msg, f'see whether the variable in --{option} "$VALUES" is set')


_OUTSIDE_BRACKETS: Final = r"(?=[^\]]*(?:\[|$))"
_SEPARATOR: Final = re.compile("," + _OUTSIDE_BRACKETS)
_EQUALS: Final = re.compile(r"\s*=\s*" + _OUTSIDE_BRACKETS)
_FORMAT: Final = (
    'Invalid entity config: all configs to be added must be in the format "key=val" or "key=[val1,val2]" '
    "to group values which contain commas"
)


def parse_added(text: str, configs: Configs, mistakes: Mistakes) -> dict[str, Any]:
    """Read `--add-config` as kafka-configs does: bounds with or without a unit, mode, owner and note as text.

    Square brackets keep commas together: `note=[until May, then less]`. Commas at the end are passed over. What is
    wrong goes to `mistakes`.
    """
    parts = _SEPARATOR.split(text.rstrip(",")) if text.strip(",") else []
    pairs = [_EQUALS.split(part) for part in parts]
    if any(len(pair) != 2 for pair in pairs):
        mistakes.add(_FORMAT)
    # Given twice, the last one counts, as it does in Kafka.
    given = {pair[0].strip(): re.sub(r"[\[\]]", "", pair[1]).strip() for pair in pairs if len(pair) == 2}
    return _checked(given, configs, mistakes)


def _checked(given: Mapping[str, str], configs: Configs, mistakes: Mistakes) -> dict[str, Any]:
    given = {configs.column_of(key): text for key, text in given.items()}
    _refuse_unknown("added", given, configs, mistakes)
    if (mode := given.get("mode", "enforce")) not in configs.modes:
        mistakes.add(f"unknown mode {mode}; use {', '.join(configs.modes)}")
    return {
        key: text if key in LABELS else parse_setting(key, text, mistakes)
        for key, text in given.items()
        if key in configs.names
    }


def _parse_deleted(texts: Iterable[str], configs: Configs, mistakes: Mistakes) -> dict[str, Any]:
    """Read each `--delete-config`: the values to delete; the mode becomes enforce. What is wrong goes to `mistakes`.

    Kafka passes over nothing between two commas, but takes a text of commas alone for a name.
    """
    keys = [configs.column_of(key.strip()) for text in texts for key in list(filter(None, text.split(","))) or [text]]
    _refuse_unknown("deleted", keys, configs, mistakes)
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        mistakes.add(f"--delete-config names {', '.join(twice)} more than once")
    return {key: configs.kind.unset.get(key) for key in keys}


def _refuse_unknown(done: str, keys: Iterable[str], configs: Configs, mistakes: Mistakes) -> None:
    """Refuse names that are not quota configs, in Kafka's words without its part on SCRAM."""
    if unknown := [key for key in keys if key not in configs.names]:
        names = f"Unexpected config names: {', '.join(unknown)}; known are {', '.join(configs.names)}"
        mistakes.add(f"Only quota configs can be {done} for '{configs.entities}'. {names}")


def _moved_layout(clients: Sequence[Mapping[str, Any]]) -> Layout:
    """With the tenants, if one of the clients has one."""
    tenant = ("tenant",) if any(client[name] for client in clients for name in ("old_tenant", "new_tenant")) else ()
    columns = (*_MOVED[:4], *tenant, *_MOVED[4:])
    return Layout(columns, dropped_first=("old_level", "new_level", "old_mode", "new_mode"), texts=("old", "new"))


def _moved_line(client: Mapping[str, Any]) -> dict[str, Any]:
    from pipeline.tables.quotas.edit import shown

    quota_type = client["quota_type"]
    old, new = (shown(quota_type, client[name]) or "none" for name in ("old_bound", "new_bound"))
    who = f"{client['user']}/{client['client_id']}"
    was, now = (client[name] or "none" for name in ("old_tenant", "new_tenant"))
    tenant = now if was == now else f"{was} → {now}"
    return {
        **client,
        "tenant": tenant,
        "client": who,
        "type": quota_type.partition("_")[0],
        "old": old,
        "new": f"→ {new}",
    }


_DIFFERENT: Final = 1
_TROUBLE: Final = 2


DeclaredFile = Annotated[str, typer.Option("-f", "--file", help="JSON or YAML; - reads standard input.")]
ExitCode = Annotated[
    bool, typer.Option("--exit-code", help="Exit with 1 if anything differs, above 1 on errors, like diff.")
]
ToVersion = Annotated[int, typer.Argument(help="The version to go back to.", min=0)]


def apply(
    file: DeclaredFile,
    *,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete what the file does not name, in each table that it has rows for.")
    ] = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Allow to leave no row in a table that the file says something of.")
    ] = False,
    exit_code: ExitCode = False,
    edit: EditOptions,
) -> None:
    """Change the quotas, and tenants, to what a file declares, in one commit for each table, and print the changes.

    An entity of the file gets exactly the bounds named there. Its mode, owner and note stay if the file does not name
    them. Entities that are not in the file stay, unless --prune is given. A file that would leave no quota at all, or
    no tenant, is refused without --allow-empty.

    A file without tenants leaves them as they are, one without quotas the quotas. With both, the quotas are stored
    first: if the tenants cannot be stored then, the command that completes it is printed. --if-version is the version
    of the quotas, or of the tenants if the file has only tenants.
    """
    apply_file(file, edit, (QUOTA_ROWS, TENANT_ROWS), prune=prune, allow_empty=allow_empty, exit_code=exit_code)


def apply_file(
    file: str, edit: Edit, kinds: Sequence[RowKind], *, prune: bool, allow_empty: bool, exit_code: bool
) -> None:
    """Change the tables of these kinds to what a file declares. `exit_code`: exit with 1 if anything differs."""
    try:
        text = sys.stdin.read() if file == "-" else read_text_file("--file", Path(file))
        declared = from_text(text, "standard input" if file == "-" else file)
        flags = [flag for flag, is_given in (("--prune", prune), ("--allow-empty", allow_empty)) if is_given]
        rest = command_text("tenants", "apply", "-f", file, *flags)
        edits = _edits(declared, edit, kinds, rest, prune=prune, allow_empty=allow_empty)
        edit.show(edits)
    except PipelineError as exc:
        if exit_code and exc.exit_code == _DIFFERENT:
            exc.exit_code = _TROUBLE
        raise
    if exit_code and any(one.has_changed for one in edits):
        raise typer.Exit(_DIFFERENT)


def _edits(
    declared: Declared, edit: Edit, kinds: Sequence[RowKind], rest: str, *, prune: bool, allow_empty: bool
) -> "list[TableEdit[Any]]":
    """Edit every table of which the file declares rows."""
    asked, kinds = kinds, [kind for kind in kinds if declared.of(kind) is not None]
    if not kinds:
        missing = "no tenants" if QUOTA_ROWS not in asked else "neither quotas nor tenants"
        added = "a document of kind: Tenant" if QUOTA_ROWS not in asked else "quotas, or documents of kind: Tenant"
        msg = f"nothing was changed: the file declares {missing}"
        raise Refused(msg, f"add {added}, as {command_text('quotas', 'export')} prints them")
    changes = [_declaring(kind, declared.of(kind) or (), prune=prune, allow_empty=allow_empty) for kind in kinds]
    return _edited(edit, [*zip(kinds, changes, strict=True)], rest)


def _edited(edit: Edit, changes: Sequence[tuple[RowKind, Change]], rest: str) -> "list[TableEdit[Any]]":
    """Edit several tables, the quotas first. All edits are planned before the first one is made.

    * `rest`: the command that makes the edits that follow, if only the first one could be made.
    """
    steps = [(edit.source.edited_table(kind), change) for kind, change in changes]
    for table, change in steps[1:]:
        table.plan(change)
    made: list[TableEdit[Any]] = []
    for table, change in steps:
        try:
            made.append(edit.made(table, change))
        except PipelineError:
            if made and made[0].has_changed and not edit.dry_run:
                edit.show(made)
                remark(f"the quotas are stored, the tenants are not. To complete it: {rest}")
            raise
        edit = edit._replace(if_version=None)  # it was of the first table
    return made


def rollback(version: ToVersion, edit: EditOptions) -> None:
    """Write the quotas of an earlier version as a new version; nothing of the history is lost.

    The table's mode (`kquota mode`) stays as it is.
    """
    roll_back(edit, edit.source.quota_table(), version)


def roll_back(edit: Edit, table: "EditedTable[Any]", version: int) -> None:
    """Write the rows of an earlier version as a new version."""
    rows = table.read(version).rows
    reason = f"rollback to v{version}" + (f": {edit.reason}" if edit.reason else "")
    edit._replace(reason=reason).show([edit._replace(reason=reason).made(table, lambda _rows: rows, rows)])


def import_(
    *,
    file: Annotated[
        str | None,
        typer.Option(
            "-f",
            "--file",
            help="Quotas of Strimzi, kafka-configs, Terraform or rpk instead of the brokers'; - reads standard input.",
            show_default=False,
        ),
    ] = None,
    tenant_label: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help="The label of a KafkaUser that names its tenant: it becomes a user of that.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        Literal["keep", "brokers"],
        typer.Option(help="Keep each bound as it is, or multiply it by the number of brokers."),
    ] = "keep",
    cluster: Annotated[Source, source_of("bootstrap_server", "command_config")],
    edit: EditOptions,
) -> None:
    """Take over the quotas that Kafka's brokers enforce, or those of a file, in one edit; others of the table stay.

    Nothing changes in the cluster. What the table cannot hold, as quotas of ips, is listed. `--dry-run` shows all of it
    before. The form of a file is found by what is in it: KafkaUser resources of Strimzi (YAML, JSON), the lines of
    kafka-configs --describe, JSON of Terraform's state or plan with kafka_quota, or rpk cluster quotas describe.
    """
    if tenant_label is not None and file is None:
        msg = "--tenant-label is for a file of KafkaUser resources; brokers keep no labels"
        raise UsageError(msg, "give --file, too")
    source = cluster._replace(config=edit.source.config)
    export = None if file is None else _read_export(file, tenant_label)
    declared = _read_cluster(source, scale, export)
    users = export.tenants if export else {}
    changes: list[tuple[RowKind, Change]] = [(QUOTA_ROWS, lambda rows: applied(rows, declared, prune=False))]
    changes += [(TENANT_ROWS, partial(_with_users, users))] if users else []
    edits = _edited(edit, changes, "the same command, without --if-version")
    edit.show(edits)
    named = {QUOTA_ROWS.key(quota) for quota in declared}
    if others := sum(QUOTA_ROWS.key(row) not in named for row in edits[0].before.rows):
        remark(f"quotas of other entities, which stay in the table: {others}")
    if users:
        _remark_unknown(users, edits[1].before.rows)


def _remark_unknown(users: Mapping[str, Sequence[str]], rows: Rows) -> None:
    """Print the users whom a label puts into a tenant that does not exist, and the command that makes it with them."""
    for tenant in sorted(users.keys() - {row["tenant"] for row in rows}):
        added = [word for user in users[tenant] for word in ("--add-user", user)]
        fix = command_text("tenants", "alter", tenant, "--add-config", "producer_byte_rate=10MB/s", *added)
        remark(f"not imported: {', '.join(users[tenant])} of tenant {tenant}, which does not exist. Fix: {fix}")


def _with_users(users: Mapping[str, Sequence[str]], rows: Rows) -> Rows:
    """The tenants with these users by their names; tenants that do not exist are left out."""
    known = {row["tenant"] for row in rows}
    added = {tenant: {USERS: names} for tenant, names in users.items() if tenant in known}
    return altered_tenants(rows, [TenantChange(tenant, added=names) for tenant, names in added.items()])


def _read_export(file: str, tenant_label: str | None) -> "Export":
    from pipeline.brokers.exports import read_export

    text = sys.stdin.read() if file == "-" else read_text_file("--file", Path(file))
    export = read_export(text, "standard input" if file == "-" else file, tenant_label)
    remark(f"{file}: {export.tool}, entities with quotas {len(export.quotas)}")
    return export


def _read_cluster(source: Source, scale: str, export: "Export | None") -> list[QuotaValues]:
    """The quotas of a cluster, or of a file, for the table. Prints the factor and what is left out on stderr.

    A file needs the cluster only for the number of its brokers.
    """
    from pipeline.brokers.native import NativeQuotas, imported
    from pipeline.cluster.connecting import ClusterAccess

    quotas, brokers = export.quotas if export else (), 1
    if export is None or scale == "brokers":
        access = ClusterAccess.from_settings(source.settings().kafka)
        with NativeQuotas(access) as native:
            quotas = quotas if export else native.describe()
            brokers = len(native.broker_ids())
        found = f", entities with quotas {len(quotas)}" if export is None else ""
        remark(f"{access.bootstrap_servers}: brokers {brokers}{found}")
    factor = brokers if scale == "brokers" else 1
    declared, left_out = imported(quotas, factor)
    remark(f"every bound × {factor} (--scale {scale})")
    for line in [*left_out, *(export.left_out if export else ())]:
        remark(f"not imported: {line}")
    return declared


def _declaring(kind: RowKind, declared: Sequence[QuotaValues], *, prune: bool, allow_empty: bool) -> Change:
    def change(rows: Sequence[dict[str, Any]]) -> Sequence[Any]:
        left = applied(rows, declared, prune=prune, kind=kind)
        if rows and not left and not allow_empty:
            what = f"the file would delete all {len(rows)} {kind.table} of the table and leave none"
            msg = f"{kind.table} were not changed: {what}"
            raise Refused(msg, "correct the file, or repeat the command with --allow-empty to delete them all")
        return left

    return change
