"""Options that several commands share, and how they become settings."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.command_line import COMMAND_CONFIG, CONFIG, TABLES_ROOT, carry

if TYPE_CHECKING:
    from pipeline.tables.quotas.table import QuotaTable


def _carried(variable: str) -> Callable[[Any], Any]:
    """A callback of an option: hints that this process prints find what the option names, too."""

    def keep(value: Any) -> Any:
        if value is not None:
            carry(variable, str(value))
        return value

    return keep


ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="TOML settings file.", envvar=CONFIG, callback=_carried(CONFIG), show_default=False),
]
BootstrapServers = Annotated[
    str | None, typer.Option("--bootstrap-server", help="host:port[,host:port…] of the cluster.", show_default=False)
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        help="client.properties: how to sign in to the cluster.",
        envvar=COMMAND_CONFIG,
        callback=_carried(COMMAND_CONFIG),
        show_default=False,
    ),
]
TablesRoot = Annotated[
    str | None,
    typer.Option("--tables", help="Root of the Delta tables.", callback=_carried(TABLES_ROOT), show_default=False),
]

MetricsPort = Annotated[
    int | None,
    typer.Option("--metrics-port", help="Port of the Prometheus endpoint; 0 = any free one.", show_default="none"),
]
MetricsClients = Annotated[
    bool, typer.Option("--metrics-clients", help="Also metrics by user and client-id, a series for each.")
]


def _known_format(*also: str) -> Callable[[str], str]:
    """A callback of an option: refuses an unknown format before the command does anything."""

    def check(output: str) -> str:
        from pipeline.cli.output import refuse_unknown_format

        refuse_unknown_format(output, also)
        return output

    return check


Output = Annotated[
    str, typer.Option("-o", "--output", help="table, wide, csv, json or yaml.", callback=_known_format())
]
QuotasOutput = Annotated[
    str,
    typer.Option("-o", "--output", help="kafka, table, wide, csv, json or yaml.", callback=_known_format("kafka")),
]


def flags(
    bootstrap_servers: str | None = None,
    command_config: Path | None = None,
    tables: str | None = None,
    topics: Mapping[str, str | None] | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Command-line options as a nested mapping for `load_settings`; None counts as not given.

    Args:
        bootstrap_servers: `--bootstrap-server`. It goes before `bootstrap.servers` of the file.
        command_config: `--command-config`.
        tables: `--tables`.
        topics: Names of topics, by their settings under `kafka`.
        others: Further settings, by branch.

    Raises:
        UnreadableFile: The file can not be read.
        ClientPropertiesInvalid: A line of it is no setting.
    """
    client = None
    if command_config is not None:
        from pipeline.cluster.properties_file import read_properties

        client = read_properties(command_config)
        bootstrap_servers = bootstrap_servers or client.get("bootstrap.servers")
    return {
        "kafka": {"bootstrap_servers": bootstrap_servers, "client": client, **(topics or {})},
        "tables": {"root": tables},
        **others,
    }


def metrics_flags(port: int | None, clients: bool) -> dict[str, Any]:
    """The branch `metrics` of `flags`."""
    return {"port": port, "clients": True if clients else None}


def quota_table(config: Path | None, tables: str | None) -> "QuotaTable":
    """The quota table that the settings and options name."""
    from pipeline.settings.loading import load_settings
    from pipeline.tables.from_settings import open_quota_table

    return open_quota_table(load_settings(config, flags(tables=tables)).tables)
