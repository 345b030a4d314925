"""Child processes that never outlive us, and free ports."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

# Runs in the child before Java does: sets the kernel to send SIGKILL when the parent dies (Linux), then becomes Java.
# A launcher and not preexec_fn, which may deadlock in a process with threads. 1 is PR_SET_PDEATHSIG.
_LAUNCHER = """
import os, sys
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
except (OSError, AttributeError):
    pass
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.nice(int(sys.argv[2]))
os.execv(sys.argv[3], sys.argv[3:])
"""


def spawn(
    command: Sequence[str],
    *,
    cwd: Path,
    output: IO[bytes] | int,
    env: Mapping[str, str] | None = None,
    niceness: int = 0,
) -> "subprocess.Popen[bytes]":
    """Starts a command in a process group of its own, bound to the life of the calling thread.

    The kernel watches the thread that starts the child, not the process: call it from one that lives as long as
    the child should. Ctrl-C in a terminal does not reach the child; its owner stops it.

    Args:
        output: takes standard output and error; a file, or `subprocess.PIPE`.
        env: all its variables; None gives it ours.
    """
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(niceness)]
    return subprocess.Popen(  # noqa: S603 - our own launcher
        [*launcher, *command],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def terminate(process: "subprocess.Popen[bytes]", grace_seconds: float) -> None:
    """SIGTERM to the group, SIGKILL after `grace_seconds`; returns when the process is gone. Harmless when it is."""
    if process.poll() is None:
        _signal_group(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_seconds)
    kill(process)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL to the group; returns when the process is gone. Harmless when it is."""
    if process.poll() is None:
        _signal_group(process, signal.SIGKILL)
    process.wait()


def is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1:`port` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """`count` different free ports. Another process may take one before it is used."""
    with contextlib.ExitStack() as probes:
        sockets = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in sockets]


def _signal_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
