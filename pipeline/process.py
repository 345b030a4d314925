"""The process of a program: locks, stop signals, background threads, child processes, free ports, and its end.

The end: Arrow's threads may still free memory that belongs to Python when the program is done. If the interpreter takes
itself down meanwhile, it ends such a thread in the middle of C++ code. C++ then aborts the process: "terminate called
without an active exception", exit code 134, after a result that was printed in full. So the process ends before that.
"""

import atexit
import contextlib
import faulthandler
import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from types import FrameType
from typing import IO, TYPE_CHECKING, Final, NoReturn, Protocol, Self
from weakref import WeakKeyDictionary

from pipeline.errors import Conflict

if TYPE_CHECKING:
    from filelock import BaseFileLock


_FAILED = 1


class _LastStep:
    """The last function the interpreter calls at its end, after threads were joined and other exit functions ran."""

    def __init__(self) -> None:
        self.code = _FAILED

    def __call__(self) -> None:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BrokenPipeError:
                pass  # the reader has gone (`| head`)
            except OSError:
                self.code = self.code or _FAILED
        os._exit(self.code)


def run_to_exit(program: Callable[[], int]) -> NoReturn:
    """Run a program and end this process with its exit code, before the interpreter takes its objects down.

    Threads are joined and exit functions (`atexit`) are called as usual, but only those that were registered after this
    call. Call it once, from the main thread. If the program raises anything but `SystemExit`, the exit code is 1.
    """
    last_step = _LastStep()
    # Exit functions run in the reverse order of their registration, so this one runs after those of the program.
    atexit.register(last_step)
    try:
        last_step.code = program()
    except SystemExit as exc:
        last_step.code = exit_code_of(exc)
        raise
    sys.exit(last_step.code)


def exit_code_of(ended: SystemExit) -> int:
    """The exit code the interpreter ends with after a `SystemExit`: 0 for none, 1 for a text."""
    return ended.code if isinstance(ended.code, int) else int(ended.code is not None)


# A lock file that one process holds while it lives, and next to it a file with the id of that process.

# `holder_of` holds a lock for a moment. A process that starts just then must not be refused for it.
_PATIENCE_SECONDS: Final = 0.2


class ProcessLock:
    """Held from `__enter__` until `__exit__`, or until the process dies; `Conflict` if another process holds it.

    * `other`: What that process is, for the error, and `fix`: what to do then.
    """

    def __init__(self, path: Path, other: str, fix: str) -> None:
        self._path = path
        self._other, self._fix = other, fix
        self._lock: BaseFileLock

    def __enter__(self) -> Self:
        # Here, not at the top: `kquota status` only reads who holds it.
        from filelock import FileLock, Timeout  # noqa: PLC0415

        self._lock = FileLock(self._path)
        try:
            self._lock.acquire(timeout=_PATIENCE_SECONDS)
        except Timeout as exc:
            message = f"{self._other} ({self._path} is held by process {_written_by_holder(self._path)})"
            raise Conflict(message, self._fix) from exc
        try:
            self._path.with_suffix(".pid").write_text(f"{os.getpid()}\n")
        except OSError:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def holder_of(path: Path) -> str | None:
    """The process that holds a lock now, as text; None if none does. Only reads, and does not wait."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        # Shared: two that look at the same time do not see each other.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _written_by_holder(path)
    finally:
        os.close(descriptor)
    return None


def _written_by_holder(path: Path) -> str:
    try:
        return path.with_suffix(".pid").read_text().strip() or "unknown"
    except FileNotFoundError:
        return "unknown"


# SIGTERM and Ctrl-C.

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def call_on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` once, after the first SIGINT or SIGTERM; the second one has its former effect (Ctrl-C: ends at once).

    It is called on a thread of its own. A signal handler runs on the main thread, between any two of its instructions:
    there it would wait without end for a lock that the main thread holds, such as that of an `Event`.
    """
    former = {kind: signal.getsignal(kind) for kind in _STOP_SIGNALS}
    ends: SimpleQueue[bool] = SimpleQueue()  # of which `put` may interrupt itself

    def restore() -> None:
        for kind, handler in former.items():
            signal.signal(kind, handler)

    def first(_kind: int, _frame: FrameType | None) -> None:
        restore()
        ends.put(True)

    def call_stop() -> None:
        if ends.get():
            stop()

    Thread(target=call_stop, name="signals", daemon=True).start()
    for kind in _STOP_SIGNALS:
        signal.signal(kind, first)
    try:
        yield
    finally:
        restore()
        ends.put(False)


def ending_within(seconds: float, stop: Callable[[], object]) -> Callable[[], None]:
    """`stop`, and so long for the process to end by itself: after that it says where its threads are, and exits with 1.

    For a program that loses nothing when it is killed, and calls what may never return: a JVM, clients of a cluster.
    """

    def stop_in_time() -> None:
        stop()
        faulthandler.dump_traceback_later(seconds, exit=True)

    return stop_in_time


@contextmanager
def wait_until_stopped() -> Iterator[Callable[[float], bool]]:
    """Give a function that waits some seconds, less when the command is to stop; True from then on.

    It ends at the first SIGINT or SIGTERM; see `call_on_signals`.
    """
    stopping = Event()
    with call_on_signals(stopping.set):
        yield stopping.wait


# A thread that takes steps until it is stopped, and reports when a step fails.

log = logging.getLogger(__name__)


def steps_left() -> bool:
    """Whether a step is still under way: one that took longer than its `close` waited for.

    The process must then end at once: the interpreter's end would crash a thread that comes back from native code.
    """
    return any(isinstance(thread, _Stepping) for thread in threading.enumerate())


class _Stepping(Thread):
    """The thread of a `Background`."""


class Background:
    """Runs `step`, which returns for how many seconds to rest, again and again on a thread of its own."""

    def __init__(
        self,
        name: str,
        step: Callable[[], float],
        failed: Callable[[BaseException], None],
        first_after_seconds: float = 0,
    ) -> None:
        self._step = step
        self._first_after_seconds = first_after_seconds
        self._failed = failed
        self._stopping = Event()
        self._thread = _Stepping(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin. Once only."""
        self._thread.start()

    def close(self, timeout_seconds: float = 10) -> None:
        """Stop after the step under way; returns when the thread has ended or the time-out has passed."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        self._stopping.wait(self._first_after_seconds)
        while not self._stopping.is_set():
            try:
                rest_seconds = self._step()
            except Exception as exc:
                log.debug("step of %s failed", self._thread.name, exc_info=True)
                self._failed(exc)
                return
            self._stopping.wait(rest_seconds)


@contextmanager
def repeating(name: str, step: Callable[[], None], every_seconds: float) -> Iterator[None]:
    """Call a function every so many seconds while the block runs, first after as long; an error of it is logged."""

    def go_on() -> float:
        try:
            step()
        except Exception:
            log.warning("%s failed and goes on", name, exc_info=True)
        return every_seconds

    thread = Background(name, go_on, lambda _failure: None, every_seconds)
    thread.start()
    try:
        yield
    finally:
        thread.close()


# fork(): of its parent's threads the child has only the one that called it, but it has all locks as they were held.


class Restartable(Protocol):
    """Something with locks or threads of its own."""

    def restart(self) -> None:
        """In a child of `fork()`: make new locks without taking an old one, and start the threads again."""


_RESTARTED: Final[WeakKeyDictionary[Restartable, None]] = WeakKeyDictionary()


def restart_in_children(restartable: Restartable) -> None:
    """From now on call its `restart` in each child of this process, while it lives; who asked first is first."""
    _RESTARTED[restartable] = None


def _restart_all() -> None:
    for restartable in list(_RESTARTED):
        restartable.restart()


os.register_at_fork(after_in_child=_restart_all)


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
