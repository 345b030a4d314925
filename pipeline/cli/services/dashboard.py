"""`kquota dashboard`: the page over the tables, and its JSON API."""

from pathlib import Path
from typing import Annotated, Final

import typer

from pipeline.allocator import do_without_pandas, return_query_memory_soon, share_one_allocator
from pipeline.cli.options import ConfigFile, TablesRoot, flags

DEFAULT_PORT: Final = 8788
_NICENESS: Final = 10


def dashboard(
    port: Annotated[int, typer.Option(help="0 means any free one.", min=0, max=65_535)] = DEFAULT_PORT,
    host: Annotated[str, typer.Option(help="Where to listen; without a token only on this machine.")] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="Its first line is the bearer token that requests must carry; else KQUOTA_DASHBOARD_TOKEN.",
            show_default=False,
        ),
    ] = None,
    allow_edits: Annotated[
        bool, typer.Option("--allow-edits", help="Quotas may be edited in the page; needs a token.")
    ] = False,
    config: ConfigFile = None,
    tables: TablesRoot = None,
) -> None:
    """Show on a web page who is throttled, why, until when, and whether the pipeline works.

    Reads the Delta tables and nothing else: no Kafka, no JVM, nothing from elsewhere.
    Prints the page's address when it answers. Runs until SIGTERM or Ctrl-C.
    """
    share_one_allocator()
    return_query_memory_soon()
    import os
    import sys

    from pipeline.cli.signals import call_on_signals
    from pipeline.dashboard.errors import DashboardExtraMissing
    from pipeline.job.heartbeat import signs_of
    from pipeline.log import set_up_logging
    from pipeline.settings.loading import load_settings

    try:
        from pipeline.dashboard.server import TOKEN_VARIABLE, DashboardServer
        from pipeline.web import Listen, read_token
    except ModuleNotFoundError as exc:
        raise DashboardExtraMissing(exc.name or "starlette") from exc
    settings = load_settings(config, flags(tables=tables))
    set_up_logging(settings.log_level)
    token = read_token(token_file, TOKEN_VARIABLE)
    signs = signs_of(settings.run_dir, settings.job, settings.tables.root)
    server = DashboardServer(settings, signs, Listen(host, port), token, allow_edits)
    with call_on_signals(server.stop):
        sys.stderr.write(f"dashboard: {server.address}\n")
        sys.stderr.flush()
        do_without_pandas()
        # A job on the same machine goes first.
        os.setpriority(os.PRIO_PROCESS, 0, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
        server.run()
