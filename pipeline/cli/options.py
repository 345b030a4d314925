"""Options that several commands share, how they become settings, instants and quota types."""

import inspect
import io
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from pipeline.cli.output import FORMATS, format_option, reader_has_gone, say, until_reader_goes
from pipeline.clock import wall_ms
from pipeline.command_line import COMMAND_CONFIG, CONFIG, TABLES_ROOT, carry
from pipeline.errors import Unreachable, UsageError
from pipeline.process import wait_until_stopped
from pipeline.settings.model import Settings, load_settings
from pipeline.tables.object_store import reach_with
from quota.entity import QUOTA_TYPES
from quota.units import age_text

if TYPE_CHECKING:
    from pipeline.tables.quotas.edit import RowKind
    from pipeline.tables.quotas.table import EditedTable, QuotaTable


class Bundle(NamedTuple):
    """Options that a command gets as one value: in `Annotated`, they stand in the place of the parameter.

    Attributes:
        options: Name of the parameter of each option -> its annotation and its default.
        read: Makes the value of the values of the options.
    """

    options: Mapping[str, tuple[Any, Any]]
    read: Callable[[typer.Context, Mapping[str, Any]], Any]


def unbundled(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of its bundles in the places of their parameters."""
    bundles: dict[str, Bundle] = {}
    parameters = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for name, own in inspect.signature(command).parameters.items():
        options: Mapping[str, tuple[Any, Any]] = {name: (own.annotation, own.default)}
        for bundle in getattr(own.annotation, "__metadata__", ()):
            if isinstance(bundle, Bundle):
                bundles[name], options = bundle, bundle.options
        parameters += [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for option, (annotation, default) in options.items()
        ]

    @wraps(command)
    def with_options(context: typer.Context, **given: Any) -> None:
        _take_options_before(context, given)
        values = {
            name: bundle.read(context, {option: given.pop(option) for option in bundle.options})
            for name, bundle in bundles.items()
        }
        command(**given, **values)

    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options


def _take_options_before(context: typer.Context, given: dict[str, Any]) -> None:
    """Put in what stands before the command, where the command line has it not after; refuse what it has no option for.

    Raises:
        UsageError: The command has no such option.
    """
    root = context.find_root()
    for name in _SOURCES:
        before, after = root.get_parameter_source(name), context.get_parameter_source(name)
        if before is None or before.name != "COMMANDLINE" or (after is not None and after.name == "COMMANDLINE"):
            continue
        if name not in given:
            msg = f"{context.command_path} has no option --{name.replace('_', '-')}"
            raise UsageError(msg, "leave it out")
        given[name] = root.params[name]
        if name in _VARIABLES:
            carry(_VARIABLES[name], str(root.params[name]))


# Where the settings come from.


def _carried(variable: str) -> Callable[[Any], Any]:
    """A callback of an option: hints that this process prints find what the option names, too."""

    def keep(value: Any) -> Any:
        if value is not None:
            carry(variable, str(value))
        return value

    return keep


BootstrapServers = Annotated[
    str | None, typer.Option("--bootstrap-server", help="host:port[,host:port…] of the cluster.", show_default=False)
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        help="client.properties: how to sign in to the cluster.",
        envvar=COMMAND_CONFIG,
        callback=_carried(COMMAND_CONFIG),
        show_default=False,
    ),
]
_VARIABLES: Final = {"config": CONFIG, "command_config": COMMAND_CONFIG, "tables": TABLES_ROOT}
ConfigFile = Annotated[
    Path | None,
    typer.Option(help="TOML settings file.", envvar=CONFIG, callback=_carried(CONFIG), show_default=False),
]
TablesRoot = Annotated[
    str | None, typer.Option(help="Root of the Delta tables.", callback=_carried(TABLES_ROOT), show_default=False)
]
_SOURCES: Final = {
    "config": ConfigFile,
    "bootstrap_server": BootstrapServers,
    "command_config": CommandConfig,
    "tables": TablesRoot,
}


class Source(NamedTuple):
    """Where the settings of a command come from, by its options; None = not given, or no option of it."""

    config: Path | None = None
    bootstrap_server: str | None = None
    command_config: Path | None = None
    tables: str | None = None

    def settings(self, **others: Any) -> "Settings":
        """The settings, with other branches that were given as options; a value that is None was not given.

        `bootstrap_server` goes before `bootstrap.servers` of `command_config`.
        """
        servers, client = self.bootstrap_server, None
        if self.command_config is not None:
            from pipeline.cluster.client_properties import read_properties

            client = read_properties(self.command_config)
            servers = servers or client.get("bootstrap.servers")
        kafka = {"bootstrap_servers": servers, "client": client}
        settings = load_settings(self.config, {"kafka": kafka, "tables": {"root": self.tables}, **others})
        reach_with(settings.store, settings.tables.root, settings.stream.checkpoint)
        return settings

    def quota_table(self) -> "QuotaTable":
        """The quota table that the settings name. It needs no cluster, so what is given for that is not read."""
        from pipeline.tables.quotas.table import QuotaTable

        return QuotaTable(self._root())

    def edited_table(self, kind: "RowKind") -> "EditedTable[Any]":
        """The table of this kind that the settings name, as `quota_table`."""
        from pipeline.tables.quotas.table import TenantTable
        from pipeline.tables.quotas.tenants import TENANT_ROWS

        return TenantTable(self._root()) if kind is TENANT_ROWS else self.quota_table()

    def _root(self) -> str:
        return Source(self.config, tables=self.tables).settings().tables.root


def source_of(*names: str) -> Bundle:
    """The options of a `Source`, by its fields, in the order of the help. They may stand before the command, too."""
    return Bundle({name: (_SOURCES[name], None) for name in names}, lambda _context, given: Source(**given))


FileSource = Annotated[Source, source_of("config")]
TablesSource = Annotated[Source, source_of("config", "tables")]
ClusterSource = Annotated[Source, source_of("config", "bootstrap_server", "command_config")]
JobSource = Annotated[Source, source_of(*_SOURCES)]

MetricsPort = Annotated[
    int | None, typer.Option(help="Port of the Prometheus endpoint; 0 = any free one.", show_default="none")
]


Output = Annotated[str, format_option("table, wide, json or yaml.", FORMATS)]
NamedOutput = Annotated[str, format_option("table, wide, name, json or yaml.", (*FORMATS, "name"))]
QuotasOutput = Annotated[str, format_option("kafka, table, wide, json or yaml.", ("kafka", *FORMATS))]
DescribeOutput = Annotated[str, format_option("kafka, table, wide, name, json or yaml.", ("kafka", *FORMATS, "name"))]


# Instants: `2h` or `-2h` for two hours ago, ISO 8601, or epoch milliseconds.

_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_END_OF_YEAR_9999_MS: Final = 253_402_300_799_999  # the last instant that Python can show


def parse_instant(option: str, given: str, now_ms: int) -> int:
    """Epoch milliseconds of an instant; a time without an offset is UTC. An age beyond 1970 is 0."""
    age = re.fullmatch(r"-?(\d+)([smhdw])", given)
    if age:
        return max(now_ms - int(age[1]) * _UNITS_MS[age[2]], 0)
    if re.fullmatch(r"\d{12,15}", given) and int(given) <= _END_OF_YEAR_9999_MS:
        return int(given)
    try:
        instant = datetime.fromisoformat(given)
    except ValueError as exc:
        msg = f"cannot read {option} {given}; use an age (90s, 30m, 2h, 7d), an ISO 8601 time or epoch milliseconds"
        raise UsageError(msg, f"write for example {option} 2h, or {option} 2026-11-21T10:00:00") from exc
    instant = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return round(instant.timestamp() * 1000)


def parse_range(since: str, until: str) -> tuple[int, int]:
    """A range up to now, in epoch ms."""
    now_ms = wall_ms()
    return parse_instant("--since", since, now_ms), parse_instant("--until", until, now_ms)


def covered_text(wanted_ms: tuple[int, int], found_ms: tuple[int, int], note: str = "") -> str:
    """What of a range has usage, in words; `note` follows if that is not all of it."""
    begin_ms, end_ms = found_ms[0] - wanted_ms[0], wanted_ms[1] - found_ms[1]
    missing = [f"begins {age_text(begin_ms)} after --since"] if begin_ms > 0 else []
    missing += [f"ends {age_text(end_ms)} before --until"] if end_ms > 0 else []
    limits = f"; it {' and '.join(missing)}{note}" if missing else ""
    return f"usage from {as_iso(found_ms[0])} to {as_iso(found_ms[1])} UTC{limits}"


def as_iso(instant_ms: int) -> str:
    """An instant as ISO 8601 in UTC, to the second, without the zone."""
    return f"{datetime.fromtimestamp(instant_ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}"


def _quota_type_of(given: str | None) -> str | None:
    if given is None:
        return None
    found = [quota_type for quota_type in QUOTA_TYPES if quota_type.startswith(given)]
    if len(found) != 1:
        msg = f"unknown quota type {given}; use {', '.join(QUOTA_TYPES)}, or the beginning of one"
        raise UsageError(msg, f"for example --type {QUOTA_TYPES[0]}")
    return found[0]


QuotaTypeOption = Annotated[
    str | None,
    typer.Option("--type", metavar="TYPE", help=f"{', '.join(QUOTA_TYPES)}; or a beginning.", callback=_quota_type_of),
]
"""A quota type, also given as the beginning of its name."""


_WATCH_SECONDS: Final = 2.0
_CLEAR: Final = "\x1b[H\x1b[2J"


def watched(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the option `--watch`: it prints again whenever what it prints on stdout has changed."""

    @wraps(command)
    def with_watch(*, watch: bool, **given: Any) -> None:
        if watch:
            _print_changes(lambda: command(**given))
        else:
            command(**given)

    own = inspect.signature(command)
    option = typer.Option("--watch", "-w", help="Print it again whenever it changes, until Ctrl-C.")
    added = inspect.Parameter(
        "watch", inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[bool, option], default=False
    )
    with_watch.__signature__ = own.replace(parameters=[*own.parameters.values(), added])  # type: ignore[attr-defined]
    return with_watch


def _print_changes(show: Callable[[], None]) -> None:
    last = None
    with wait_until_stopped() as wait, until_reader_goes():
        while not reader_has_gone():
            out, err = io.StringIO(), io.StringIO()
            with redirect_stdout(out), redirect_stderr(err), suppress(typer.Exit):
                try:
                    show()
                except Unreachable as exc:  # perhaps only for a moment
                    say(f"kquota: {exc}")
            if out.getvalue() != last:
                again = "\n" if last else ""
                sys.stdout.write((_CLEAR if sys.stdout.isatty() else again) + out.getvalue())
                sys.stdout.flush()
                sys.stderr.write(err.getvalue())
            last = out.getvalue()
            if wait(_WATCH_SECONDS):
                return
