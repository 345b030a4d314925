"""`kquota`: all commands, and what an error ends with: one line on stderr and its exit code.

A stack trace is printed only with KQUOTA_LOG_LEVEL=DEBUG.
"""

import os
import sys
import traceback
from typing import Annotated, Final

import typer

from pipeline.cli.on_demand import Place, group_of
from pipeline.cli.output import discard_output
from pipeline.command_line import carry_nothing
from pipeline.errors import PipelineError, first_line
from pipeline.process import exit_code_of, run_to_exit, steps_left

_INTERRUPTED: Final = 130
_OF_THE_JOB: Final = frozenset({"pyspark", "delta", "py4j"})

_COMMANDS: Final = {
    "run": Place("pipeline.cli.services", "run"),
    "demo": Place("pipeline.cli.demo", "demo"),
    "mode": Place("pipeline.cli.tables", "mode"),
    "doctor": Place("pipeline.cli.checks", "doctor"),
    "status": Place("pipeline.cli.checks", "status"),
    "top": Place("pipeline.cli.top", "top"),
    "gate": Place("pipeline.cli.services", "gate"),
    "dashboard": Place("pipeline.cli.services", "dashboard"),
    "simulate": Place("pipeline.cli.what_if", "simulate"),
    "what-if": Place("pipeline.cli.what_if", "what_if"),
    "quotas": Place("pipeline.cli.quotas.commands", "app"),
    "alerts": Place("pipeline.cli.services", "alerts_app"),
    "throttles": Place("pipeline.cli.throttles", "app"),
    "report": Place("pipeline.cli.reports", "app"),
    "size": Place("pipeline.cli.checks", "size"),
    "tables": Place("pipeline.cli.tables", "app"),
    "topics": Place("pipeline.cli.topics", "app"),
    "meter": Place("pipeline.cli.meter", "app"),
    "config": Place("pipeline.cli.checks", "app"),
    "jars": Place("pipeline.cli.checks", "jars_app"),
}


def print_version(wanted: bool) -> None:
    """Print the version of the installed distribution and end, if it is wanted."""
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"kquota {version('kafka-quota-pipeline')}\n")
        raise typer.Exit


app = typer.Typer(
    name="kquota",
    cls=group_of(_COMMANDS),
    help="Client quotas for Kafka platforms, cluster-wide and explained.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    del version


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
    try:
        app()
    except SystemExit as exc:
        return exit_code_of(exc)
    except PipelineError as exc:
        sys.stderr.write(f"kquota: {exc}\n")
        return exc.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        discard_output()
    except Exception as exc:
        return _report_unexpected(exc)
    return 0


def _report_unexpected(failure: Exception) -> int:
    """Print one line for a failure that has no error class: a damaged file, a full disk, a defect of kquota.

    Commands import what they need when they run. One that needs Spark ends here if only the core is installed.
    """
    if os.environ.get("KQUOTA_LOG_LEVEL") == "DEBUG":
        traceback.print_exception(failure)
    if isinstance(failure, ModuleNotFoundError) and (library := str(failure.name).partition(".")[0]) in _OF_THE_JOB:
        from pipeline.command_line import not_installed
        from pipeline.errors import PipelineError

        sys.stderr.write(f"kquota: {not_installed(library, 'job')}\n")
        return PipelineError.exit_code
    line = f"{type(failure).__name__}: {first_line(failure)}"
    sys.stderr.write(f"kquota: {line}. Fix: repeat it with KQUOTA_LOG_LEVEL=DEBUG, which shows where it happened\n")
    return 1


if __name__ == "__main__":
    main()
