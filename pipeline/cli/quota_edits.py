"""Edits of the quota table: `kquota quotas alter`, `delete`, `sql`, `apply`, `import` and `rollback`.

Each is one commit, and is printed. `alter` and `delete` have the flags and the answers of kafka-configs.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import typer

from pipeline.cli.entity import EntityFilter, OneEntity
from pipeline.cli.options import (
    BootstrapServers,
    Bundle,
    CommandConfig,
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
from pipeline.tables.quotas.edit import LABELS, QuotaChange, QuotaValues, altered, edit_refused, refuse_absent
from pipeline.tables.quotas.files import applied, from_text
from quota.entity import QUOTA_TYPES, label, may_apply
from quota.snapshot import MODES
from quota.units import Mistakes, parse_bound

if TYPE_CHECKING:
    from pipeline.brokers.exports import Export
    from pipeline.tables.quotas.table import QuotaEdit


Rows = Sequence[Mapping[str, Any]]
Change = Callable[[Sequence[dict[str, Any]]], Rows]
"""An edit, as a function from the old rows of `quotas` to the new ones."""

_MOVED: Final = Layout(
    ("client", "type", "old", "new", "old_mode", "new_mode", "old_level", "new_level"),
    dropped_first=("old_level", "new_level", "old_mode", "new_mode"),
    texts=("old", "new"),
)
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
        """Make the edit, or only plan it, and print the result. The table must exist; see `QuotaTable.commit`.

        Args:
            answer: The line that `-o kafka` prints; None for commands that kafka-configs does not have. The changes of
                a dry run are printed as a table even then: Kafka has no form for them.
        """
        from pipeline.tables.quotas.history import differences, entity_texts
        from pipeline.tables.quotas.table import QuotaTable, local_audit

        settings = self.source.settings()
        table = QuotaTable(settings.tables.root)
        if self.dry_run:
            edit = table.plan(change, self.if_version, once_stored)
        else:
            edit = table.commit(change, local_audit(self.reason), self.if_version, once_stored)
        if self.output == "kafka" and not self.dry_run:
            # Kafka's line names only a part of a pair, so stderr has the changes. stdout is as Kafka's.
            say(str(answer))
            texts = entity_texts(differences(edit.before.rows, edit.rows))
            remark(*texts)
        else:
            _print_edit(settings, edit, "table" if self.output == "kafka" else self.output, with_clients=self.dry_run)
        changed = edit.rows != edit.before.rows
        note = ", dry run, nothing was written" if self.dry_run else "" if changed else ", nothing to change"
        remark(f"quotas v{edit.version}{note}")
        return edit


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
    change = _alteration(entity, _one(add_config, "add-config"), add_config_file, delete_config)
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
    print_rows(run_sql(settings, statement, local_audit(reason)), output)
    if added := QuotaTable(settings.tables.root).columns_of_others():
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
    mistakes = Mistakes()
    values: dict[str, Any] = {}
    if added is not None:
        values = parse_added(added, entity.names, mistakes.at("--add-config"))
    elif added_file is not None:
        text = read_text_file("--add-config-file", added_file)
        values = _checked(parse_properties(text, str(added_file)), entity.names, mistakes.at(str(added_file)))
    taken = _parse_deleted(deleted, entity.names, mistakes.at("--delete-config")) if deleted is not None else {}
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


def parse_added(text: str, types: Collection[str], mistakes: Mistakes) -> dict[str, Any]:
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
    return _checked(given, types, mistakes)


def _checked(given: Mapping[str, str], types: Collection[str], mistakes: Mistakes) -> dict[str, Any]:

    values: dict[str, Any] = {}
    _refuse_unknown("added", given, types, mistakes)
    for key, text in given.items():
        if key in QUOTA_TYPES:
            with mistakes.bound():
                values[key] = parse_bound(key, text)
        elif key == "mode" and text not in MODES:
            mistakes.add(f"unknown mode {text}; use {', '.join(MODES)}")
        elif key in LABELS:
            values[key] = text
    return values


def _parse_deleted(texts: Iterable[str], types: Collection[str], mistakes: Mistakes) -> dict[str, Any]:
    """Read each `--delete-config`: the values to delete; the mode becomes enforce. What is wrong goes to `mistakes`.

    Kafka passes over nothing between two commas, but takes a text of commas alone for a name.
    """
    keys = [key.strip() for text in texts for key in list(filter(None, text.split(","))) or [text]]
    _refuse_unknown("deleted", keys, types, mistakes)
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        mistakes.add(f"--delete-config names {', '.join(twice)} more than once")
    return {key: "enforce" if key == "mode" else None for key in keys}


def _refuse_unknown(done: str, keys: Iterable[str], types: Collection[str], mistakes: Mistakes) -> None:
    """Refuse names that are not quota configs, in Kafka's words without its part on SCRAM."""
    known = (*QUOTA_TYPES, *LABELS)
    if unknown := [key for key in keys if key not in known]:
        kind = "clients" if "clients" in types else "users"
        names = f"Unexpected config names: {', '.join(unknown)}; known are {', '.join(known)}"
        mistakes.add(f"Only quota configs can be {done} for '{kind}'. {names}")


def _print_edit(settings: "Settings", edit: "QuotaEdit", output: str, *, with_clients: bool) -> None:
    """Print every value that an edit changes, and on request the live clients that get another level or bound."""
    from pipeline.tables.quotas.history import differences

    changes = differences(edit.before.rows, edit.rows)
    clients: list[dict[str, Any]] = []
    warnings: list[str] = []
    if with_clients:
        from pipeline.replay.what_if import impact_of

        clients, warnings = impact_of(edit, settings)
    if not is_table(output):
        rows = [change.as_row() for change in changes]
        versions = {"version": edit.version, "previous_version": edit.before.version}
        document = {**versions, "dry_run": with_clients, "changes": rows}
        dry = {"clients": clients, "warnings": warnings} if with_clients else {}
        print_rows(rows, output, document=document | dry)
        return
    print_rows([change_line(change) for change in changes], output, CHANGES)
    if with_clients and clients:
        say("")
        print_rows(clients, output, _MOVED, shown=_moved_line)
    elif with_clients:
        remark("no live client changes its level or bound")
    remark(*(f"warning: {text}" for text in warnings))


def _moved_line(client: Mapping[str, Any]) -> dict[str, Any]:
    from pipeline.tables.quotas.history import shown

    quota_type = client["quota_type"]
    old, new = (shown(quota_type, client[name]) or "none" for name in ("old_bound", "new_bound"))
    who = f"{client['user']}/{client['client_id']}"
    return {**client, "client": who, "type": quota_type.partition("_")[0], "old": old, "new": f"→ {new}"}


_DIFFERENT: Final = 1
_TROUBLE: Final = 2


def apply(
    file: Annotated[str, typer.Option("-f", "--file", help="JSON or YAML; - reads standard input.")],
    *,
    prune: Annotated[bool, typer.Option("--prune", help="Delete quotas that the file does not name.")] = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Allow a file without quotas to delete all quotas of the table.")
    ] = False,
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
        text = sys.stdin.read() if file == "-" else read_text_file("--file", Path(file))
        declared = from_text(text, "standard input" if file == "-" else file)
        done = edit.make(_declaring(declared, prune=prune, allow_empty=allow_empty))
    except PipelineError as exc:
        if exit_code and exc.exit_code == _DIFFERENT:
            exc.exit_code = _TROUBLE
        raise
    if exit_code and done.rows != done.before.rows:
        raise typer.Exit(_DIFFERENT)


def rollback(
    version: Annotated[int, typer.Argument(help="The version to go back to.", min=0)], edit: EditOptions
) -> None:
    """Write the quotas of an earlier version as a new version; nothing of the history is lost.

    The table's mode (`kquota mode`) stays as it is.
    """
    rows = edit.source.quota_table().read(version).rows
    reason = f"rollback to v{version}" + (f": {edit.reason}" if edit.reason else "")
    edit._replace(reason=reason).make(lambda _rows: rows, once_stored=rows)


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
        typer.Option(metavar="LABEL", help="The label of a KafkaUser that names its tenant.", show_default=False),
    ] = None,
    scale: Annotated[
        Literal["keep", "brokers"],
        typer.Option(help="Keep each bound as it is, or multiply it by the number of brokers."),
    ] = "keep",
    bootstrap_server: BootstrapServers = None,
    command_config: CommandConfig = None,
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
    source = Source(edit.source.config, bootstrap_server, command_config)
    export = None if file is None else _read_export(file, tenant_label)
    declared = _read_cluster(source, scale, export)
    done = edit.make(lambda rows: applied(rows, declared, prune=False))
    named = {(quota["user"], quota["client_id"]) for quota in declared}
    others = sum((row["user"], row["client_id"]) not in named for row in done.before.rows)
    if others:
        remark(f"quotas of other entities, which stay in the table: {others}")
    for tenant, users in sorted(export.tenants.items()) if export else ():
        remark(f"tenant {tenant}: {', '.join(users)}")


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


def _declaring(declared: Sequence[QuotaValues], *, prune: bool, allow_empty: bool) -> Change:
    def change(rows: Sequence[dict[str, Any]]) -> Sequence[Any]:
        left = applied(rows, declared, prune=prune)
        if rows and not left and not allow_empty:
            msg = f"quotas were not changed: the file would delete all {len(rows)} quotas of the table and leave none"
            raise Refused(msg, "correct the file, or repeat the command with --allow-empty to delete them all")
        return left

    return change
