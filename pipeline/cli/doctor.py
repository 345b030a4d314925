"""`kquota doctor`: checks everything the job needs, and says what to do about what is missing."""

import sys

import typer

from pipeline.cli.options import BootstrapServers, CommandConfig, ConfigFile, TablesRoot, flags
from pipeline.errors import printable


def doctor(
    config: ConfigFile = None,
    bootstrap_server: BootstrapServers = None,
    command_config: CommandConfig = None,
    tables: TablesRoot = None,
) -> None:
    """Check Java, jars, cluster, topics, tables, quotas and lock; one line each, with a remedy.

    Exit codes: 0 no errors; 1 at least one error. Without --bootstrap-server the cluster is not checked.
    """
    from pipeline.job.diagnosis import diagnose
    from pipeline.settings.loading import load_settings

    settings = load_settings(config, flags(bootstrap_server, command_config, tables))
    wrong = 0
    for finding in diagnose(settings):
        sign = {"ok": "ok   ", "warning": "warn ", "error": "ERROR"}[finding.severity]
        sys.stdout.write(f"{sign} {finding.subject:<9} {printable(finding.text)}\n")
        wrong += finding.severity == "error"
    if wrong:
        raise typer.Exit(1)
