"""The dashboard and the alerts beside a job: processes of their own, which end with it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.settings.model import Settings


def free_port(wanted: int | None) -> int | None:
    """The port for a page, or another one if it is taken; None for no page, or if its libraries are not installed."""
    from pipeline.demo.process import free_ports, is_free

    if wanted is None or find_spec("uvicorn") is None or find_spec("starlette") is None:
        return None
    return wanted if is_free(wanted) else free_ports(1)[0]


@contextmanager
def dashboard_beside(wanted: bool, port: int, config: Path | None, tables_root: str) -> Iterator[None]:
    """Within the block the dashboard runs, if it is wanted. It prints its address itself, on stderr.

    Args:
        wanted: Whether it is.
        port: Where it listens, on this machine only.
        config: The job's settings file; None = none.
        tables_root: The tables, whatever the file says.

    Raises:
        DashboardExtraMissing: Its libraries are not installed.
    """
    if not wanted:
        yield
        return
    from pipeline.dashboard.errors import DashboardExtraMissing
    from pipeline.demo.process import spawn, terminate

    for library in ("starlette", "uvicorn"):
        if find_spec(library) is None:
            raise DashboardExtraMissing(library)
    command = [sys.executable, "-m", "pipeline.cli.main", "dashboard", "--port", str(port), "--tables", tables_root]
    command += [] if config is None else ["--config", str(config)]
    child = spawn(command, cwd=Path.cwd(), output=sys.stderr.fileno())
    try:
        yield
    finally:
        terminate(child, 5.0)


@contextmanager
def alerts_beside(
    wanted: bool, settings: "Settings", config: Path | None, command_config: Path | None
) -> Iterator[None]:
    """Within the block `kquota alerts run` runs, if it is wanted. Its metrics, if the job has some, get a free port.

    Args:
        wanted: Whether it is.
        settings: Of the job.
        config: The job's settings file; None = none.
        command_config: The job's client.properties; None = none.

    Raises:
        ReceiversMissing, ReceiversInvalid: There is nobody to tell, or a receiver can not be used.
    """
    if not wanted:
        yield
        return
    from pipeline.alerts.receivers import receivers_of
    from pipeline.demo.process import spawn, terminate

    receivers_of(settings)  # refused here, where the operator sees it
    command = [sys.executable, "-m", "pipeline.cli.main", "alerts", "run", "--tables", settings.tables.root]
    for option, value in (
        ("--config", config),
        ("--command-config", command_config),
        ("--bootstrap-server", settings.kafka.bootstrap_servers),
        ("--metrics-port", None if settings.metrics.port is None else 0),
    ):
        command += [] if value is None else [option, str(value)]
    child = spawn(command, cwd=Path.cwd(), output=sys.stderr.fileno())
    try:
        yield
    finally:
        terminate(child, 5.0)
