"""`kquota status`: whether the job runs, how far it is, what is in force, and where everything is."""

import socket
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from pipeline.cli.options import BootstrapServers, ConfigFile, Output, TablesRoot, flags
from pipeline.cli.services.gate import DEFAULT_LISTEN
from pipeline.clock import wall_ms
from pipeline.errors import printable

if TYPE_CHECKING:
    from pipeline.job.status import JobStatus

_CONNECT_SECONDS: Final = 0.2


def status(
    config: ConfigFile = None,
    bootstrap_server: BootstrapServers = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Print whether the job runs, its last batch, the quotas in force, how many clients are held, and addresses.

    Reads the tables and the job's lock; asks no cluster. It ends with 0 also if the job is down. The gate is looked for
    where `kquota gate` listens by default.
    """
    from pipeline.cli.output import is_table, print_rows
    from pipeline.job.status import status_of
    from pipeline.settings.loading import load_settings

    found = status_of(load_settings(config, flags(bootstrap_server, tables=tables)), wall_ms())
    gate = f"http://{DEFAULT_LISTEN}" if _answers(DEFAULT_LISTEN) else None
    if not is_table(output):
        document = {**asdict(found), "gate": gate}
        print_rows([document], output, document=document)
        return
    for subject, text in _lines(found, gate):
        sys.stdout.write(f"{subject:<7} {printable(text)}\n")


def _lines(found: "JobStatus", gate: str | None) -> list[tuple[str, str]]:
    is_behind = found.last_batch_quotas is not None and found.last_batch_quotas != found.quotas
    return [
        ("job", f"{found.job}: {_process_text(found)}"),
        ("batch", _batch_text(found)),
        (
            "quotas",
            f"v{found.quotas} in force"
            + (f", the last batch was decided with v{found.last_batch_quotas}" if is_behind else "")
            + (f"; v{found.newest_quotas} is newer and not valid" if found.newest_quotas != found.quotas else ""),
        ),
        ("mode", found.mode),
        ("held", f"{found.held_clients} client{'' if found.held_clients == 1 else 's'}"),
        ("kafka", found.bootstrap_servers or "not given"),
        ("gate", gate or f"none at {DEFAULT_LISTEN}"),
        ("tables", found.tables),
    ]


def _process_text(found: "JobStatus") -> str:
    if not found.process:
        return "down on this machine"
    up, looked_ms = f"up, process {found.process}", found.last_wait_age_ms
    looked = f"it last looked for usage {(looked_ms or 0) / 1000:.1f} s ago"
    if found.activity == "idle":
        return f"{up}; it waits for usage"
    if found.activity == "hung":
        return f"{up}; it hangs: {looked}"
    if found.activity == "unknown" and (looked_ms is None or looked_ms < 0):
        return f"{up}; it has not yet looked for usage: it starts, or hangs"
    return f"{up}; {looked}: a batch takes long, or it hangs" if found.activity == "unknown" else up


def _batch_text(found: "JobStatus") -> str:
    if found.last_batch_age_ms is None or found.lag_ms is None:
        return "none yet"
    return (
        f"{found.last_batch_id}, {found.last_batch_age_ms / 1000:.1f} s ago; "
        f"its newest event was then {found.lag_ms / 1000:.1f} s old"
    )


def _answers(address: str) -> bool:
    """Whether somebody listens there."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), _CONNECT_SECONDS):
            return True
    except OSError:
        return False
