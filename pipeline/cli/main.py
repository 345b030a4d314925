"""`kquota`: all commands, and what an error ends with: one line on stderr and its exit code.

A stack trace is printed only with KQUOTA_LOG_LEVEL=DEBUG.
"""

import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version as version_of
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup

from pipeline.cli import meter, observe, quota_edits, quotas, services, setup, tenants, throttles, what_if
from pipeline.cli.options import BootstrapServers, CommandConfig, ConfigFile, TablesRoot, unbundled
from pipeline.cli.output import discard_output, print_what_it_can, remark, say
from pipeline.command_line import carry_nothing, not_installed
from pipeline.errors import PipelineError, UsageError, first_line
from pipeline.process import exit_code_of, run_to_exit, steps_left

_INTERRUPTED: Final = 130
_OF_THE_JOB: Final = frozenset({"pyspark", "delta", "py4j"})


class Group(NamedTuple):
    """A group of commands: its help, and their functions by their names."""

    help: str
    commands: "Commands"


Commands = Mapping[str, Callable[..., None] | Group]

_COMMANDS: Final[Commands] = {
    "status": setup.status,
    "throttles": Group(
        "See who is throttled, and why.",
        {
            "list": throttles.list_,
            "tail": throttles.tail,
            "explain": throttles.explain,
            "forgive": throttles.forgive,
            "verify": throttles.verify,
        },
    ),
    "observe": observe.observe,
    "dashboard": services.dashboard,
    "simulate": what_if.simulate,
    "what-if": what_if.what_if,
    "quotas": Group(
        "See, edit, version and restore quotas.",
        {
            "describe": quotas.describe,
            "alter": quota_edits.alter,
            "delete": quota_edits.delete,
            "export": quotas.export,
            "apply": quota_edits.apply,
            "import": quota_edits.import_,
            "history": quotas.history,
            "diff": quotas.diff,
            "at": quotas.at,
            "rollback": quota_edits.rollback,
            "effective": quotas.effective,
            "sql": quota_edits.sql,
            "sync": quotas.sync,
        },
    ),
    "mode": setup.mode,
    "tenants": Group(
        "See, edit, version and restore tenants: one bound for a team, lent inside it.",
        {
            "describe": tenants.describe,
            "alter": tenants.alter,
            "delete": tenants.delete,
            "apply": tenants.apply,
            "history": tenants.history,
            "diff": tenants.diff,
            "rollback": tenants.rollback,
            "link": tenants.link,
        },
    ),
    "run": services.run,
    "demo": services.demo,
    "gate": services.gate,
    "meter": Group(
        "Turn what a broker observes into usage events.",
        {
            "reporter": meter.reporter,
            "prometheus": meter.prometheus,
            "enable": meter.enable,
            "disable": meter.disable,
            "status": meter.status,
        },
    ),
    "doctor": setup.doctor,
    "tables": Group(
        "Create the Delta tables of the pipeline; print SQL for views over them.",
        {"create": setup.create_tables, "views": setup.views},
    ),
    "topics": Group(
        "Create and check the topics of the pipeline.", {"create": setup.create_topics, "check": setup.check_topics}
    ),
    "config": Group("Show the settings in force, or their schema.", {"show": setup.show, "schema": setup.schema}),
    "jars": Group(
        "Fetch and check the locked jars of Spark and of the embedded broker.",
        {
            "fetch": setup.fetch_jars,
            "paths": setup.jar_paths,
        },
    ),
}


def print_version(wanted: bool) -> None:
    """Print the version of the installed distribution and end, if it is wanted."""
    if wanted:
        say(f"kquota {version_of('kafka-quota-pipeline')}")
        raise typer.Exit


_PANELS: Final = {"status": "Look", "quotas": "Quotas", "tenants": "Tenants", "run": "Run", "doctor": "Set up"}
"""The panels of the help, by the first command of each."""


def _panel_of(command: str) -> str:
    before = [*_COMMANDS][: [*_COMMANDS].index(command) + 1]
    return next(panel for name in reversed(before) if (panel := _PANELS.get(name)))


class _InOrder(TyperGroup):
    """The commands in their order; typer puts groups last."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in _COMMANDS if name in super(_InOrder, self).list_commands(ctx)]


def _add(commands: Commands, to: typer.Typer, *, in_panels: bool = False) -> None:
    for name, command in commands.items():
        shown_in = _panel_of(name) if in_panels else None
        if isinstance(command, Group):
            group = typer.Typer(help=command.help, no_args_is_help=True)
            _add(command.commands, group)
            to.add_typer(group, name=name, rich_help_panel=shown_in)
        else:
            # -2h is an instant, not an option.
            settings = {"ignore_unknown_options": True} if command is quotas.at else None
            to.command(name, context_settings=settings, rich_help_panel=shown_in)(unbundled(command))


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=print_version, is_eager=True)
    ] = False,
    config: ConfigFile = None,
    bootstrap_server: BootstrapServers = None,
    command_config: CommandConfig = None,
    tables: TablesRoot = None,
) -> None:
    del version, config, bootstrap_server, command_config, tables  # `source_of` reads them


def _app_of(commands: Commands) -> typer.Typer:
    found = typer.Typer(
        name="kquota",
        cls=_InOrder,
        help="Client quotas for Kafka platforms, cluster-wide and explained.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
    )
    found.callback()(_options)
    _add(commands, found, in_panels=True)
    return found


app = _app_of(_COMMANDS)


def _named(commands: Commands, words: Sequence[str]) -> Commands:
    """Only the command that these words name, if they do: to make all of them takes as long as many of them take."""
    name = words[0] if words else ""
    if name not in commands:
        return commands
    found = commands[name]
    if isinstance(found, Group):
        found = found._replace(commands=_named(found.commands, words[1:]))
    return {name: found}


@lru_cache(maxsize=256)
def _app_for(words: tuple[str, ...]) -> typer.Typer:
    named = _named(_COMMANDS, words)
    return app if named is _COMMANDS else _app_of(named)


def main() -> None:
    """Entry point of the console script.

    Exit codes: 0 done; 1 failed; 2 wrong usage; 3 nothing matched; 4 conflict; 5 refused by validation;
    6 an outside service is unreachable; 130 interrupted.
    """
    run_to_exit(_ended)


def _ended() -> int:
    code = exit_code()
    if steps_left():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def exit_code() -> int:
    """Run the command that the arguments of the process name, and return its exit code."""
    carry_nothing()
    print_what_it_can()
    try:
        _refuse_what_is_no_text(sys.argv)
        _app_for(tuple(sys.argv[1:3]))()
    except SystemExit as exc:
        return exit_code_of(exc)
    except PipelineError as exc:
        remark(f"kquota: {exc}")
        return exc.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        discard_output()
    except Exception as exc:
        return _report_unexpected(exc)
    return 0


def _refuse_what_is_no_text(arguments: Sequence[str]) -> None:
    """Refuse bytes that are no text in the terminal's encoding: no table and no topic can hold such a name."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as exc:
            encoding = sys.getfilesystemencoding()
            fix = f"write it in {encoding}, or use another encoding: export LC_ALL=C.UTF-8"
            msg = f"the argument {argument} is not {encoding}"
            raise UsageError(msg, fix) from exc


def _report_unexpected(failure: Exception) -> int:
    """Print one line for a failure that has no error class: a damaged file, a full disk, a defect of kquota.

    Commands import what they need when they run. One that needs Spark ends here if only the core is installed.
    """
    if os.environ.get("KQUOTA_LOG_LEVEL") == "DEBUG":
        remark(*"".join(traceback.format_exception(failure)).rstrip().split("\n"))
    if isinstance(failure, ModuleNotFoundError) and (library := str(failure.name).partition(".")[0]) in _OF_THE_JOB:
        remark(f"kquota: {not_installed(library, 'job')}")
        return PipelineError.exit_code
    line = f"{type(failure).__name__}: {first_line(failure)}"
    remark(f"kquota: {line}. Fix: repeat it with KQUOTA_LOG_LEVEL=DEBUG, which shows where it happened")
    return 1


if __name__ == "__main__":
    main()
