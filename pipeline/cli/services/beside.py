"""The dashboard beside a job: a process of its own, which ends with it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path


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
