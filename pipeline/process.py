"""The process of a program: its locks, background threads, children by `fork()`, memory, heartbeat, and its end.

The end: Arrow's threads may still free memory that belongs to Python when the program is done. If the interpreter takes
itself down meanwhile, it ends such a thread in the middle of C++ code. C++ then aborts the process: "terminate called
without an active exception", exit code 134, after a result that was printed in full. So the process ends before that.
"""

import atexit
import ctypes
import fcntl
import gc
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, Literal, NoReturn, Protocol, Self
from weakref import WeakKeyDictionary

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


class LockHeld(Exception):
    """Another process holds the lock: `holder` is its process id as text, "unknown" if it has not written it."""

    def __init__(self, path: Path, holder: str) -> None:
        self.path = path
        self.holder = holder
        super().__init__(f"{path} is held by process {holder}")


class ProcessLock:
    """Held from `__enter__` (`LockHeld` if another process holds it) until `__exit__`, or until the process dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: BaseFileLock

    def __enter__(self) -> Self:
        # Here, not at the top: `kquota status` only reads who holds it.
        from filelock import FileLock, Timeout  # noqa: PLC0415

        self._lock = FileLock(self._path)
        try:
            self._lock.acquire(timeout=_PATIENCE_SECONDS)
        except Timeout as exc:
            raise LockHeld(self._path, _written_by_holder(self._path)) from exc
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


# A thread that takes steps until it is stopped, and reports when a step fails.

log = logging.getLogger(__name__)


def steps_left() -> bool:
    """Whether a step is still under way: one that took longer than its `close` waited for.

    The process must then end at once: the interpreter's end would crash a thread that comes back from native code.
    """
    return any(isinstance(thread, _Stepping) for thread in threading.enumerate())


class _Stepping(Thread):
    """Of a `Background`."""


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


# Returning freed memory to the system, so that a process that runs for months does not keep its peak.

# Variable of the user, the option as glibc's malloc.h has it, our value.
_MALLOC: Final = (("MALLOC_ARENA_MAX", -8, 2), ("MALLOC_MMAP_THRESHOLD_", -3, 524_288))


def share_one_allocator() -> None:
    """Make pyarrow use the C library's allocator, with two arenas. Must be called before pyarrow is imported.

    pyarrow's own allocator keeps some 15 MB of its own, and glibc begins an arena for each of the first threads,
    eight per core. And once a large block was freed, glibc takes blocks of that size from arenas, in which they leave
    holes; now those of half a megabyte go back to the system. If those of a quarter went, too, a large batch would take
    10 % longer. For a process that needs little and must stay small. Values that the user has set are kept. Does
    nothing about arenas and blocks with a C library other than glibc.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    for variable, option, value in _MALLOC:
        if set_option is not None and variable not in os.environ:
            set_option(option, value)


def return_query_memory_soon() -> None:
    """Make delta-rs return freed memory to the system soon. Must be called before deltalake is imported.

    Its engine has an allocator of its own (jemalloc), which keeps what is freed for 10 s, for each of many threads: a
    process that queries all the time then holds twice what a query needs. A value that the user has set is kept.
    """
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:50,muzzy_decay_ms:0,narenas:1,tcache_max:4096")


class _WithoutPandas:
    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: object = None) -> None:
        if name == "pandas":
            message = "pyarrow does without pandas"
            raise ModuleNotFoundError(message, name=name)


def do_without_pandas() -> None:
    """Keep pyarrow from importing pandas, which it does with its first array, only to ask whether it is one of pandas'.

    That takes 55 MB. Must be called before that array. Who imports pandas later gets it.
    """
    import pyarrow as pa  # noqa: PLC0415 - only the programs that read or write tables

    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


def return_freed_memory() -> None:
    """Return memory that is free inside the C library to the system; takes a few milliseconds.

    glibc by itself returns only free memory at the end of an arena, not between two blocks in use. In a job that had
    started its query fifty times, half of the memory in its arenas was free. Does nothing with another C library.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


_MADV_DONTNEED: Final = 4
_MAPPING: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (r-[-x]p) .*\.so[.0-9]*\n(?:[A-Z].*\n)*?Anonymous: +0 kB\n")


def return_unused_code() -> None:
    """Return the pages of libraries' code and constants; those that are used come back at once from the files' cache.

    A process keeps every page that it ever ran: those of its start, and of what it does once. delta-rs alone has 100 MB
    of code, of which the start runs a third. Takes some milliseconds. Does nothing on another system than Linux.
    """
    advise, smaps = getattr(ctypes.CDLL(None), "madvise", None), Path("/proc/self/smaps")
    if advise is None or not smaps.exists():
        return
    # A mapping that may not be written to, and has no page of its own, is in its file as it is in memory.
    for found in _MAPPING.finditer(smaps.read_text(encoding="utf-8", errors="replace")):
        begin, end = (int(part, 16) for part in found.groups()[:2])
        advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_DONTNEED)


@contextmanager
def paused() -> Iterator[None]:
    """Pause the garbage collector, of all threads, while many objects are made that all stay alive.

    While a text is read, the collector would look through all objects again and again and find nothing, which takes a
    third to a half of the time. If two threads pause it, it goes on with the first of them that ends.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# What a job does that writes no micro-batch: it waits for usage, or it hangs; and whether its time is that of now.

FRESH_MS: Final = 3_000
"""A job that was seen to wait so lately still waits, as far as can be known."""

LATE_AFTER_MS: Final = 15_000
"""A job that was not seen to wait for longer hangs: no batch takes so long that does not."""

AHEAD_AFTER_MS: Final = 5_000
"""Event time may be ahead of the wall clock for as long: events up to 2 s ahead are believed, and clocks differ."""

Activity = Literal["working", "idle", "hung", "unknown", "down"]


def activity_of(is_up: bool, batch_age_ms: int | None, beat_age_ms: int | None, stalled_after_ms: int) -> Activity:
    """What the job does: down, not running on this machine; working, while batches come; else idle, hung or unknown.

    It is idle while the query was seen to wait in the last `FRESH_MS`, and hung if it was last seen to wait long ago.
    In between it is unknown: it starts, has a long batch, or hangs. The age of a beat is negative if the job's clock is
    ahead, or was set back since; None if there was none.
    """
    if not is_up:
        return "down"
    if batch_age_ms is not None and batch_age_ms <= stalled_after_ms:
        return "working"
    if beat_age_ms is not None and abs(beat_age_ms) <= FRESH_MS:
        return "idle"
    return "hung" if beat_age_ms is not None and beat_age_ms > LATE_AFTER_MS else "unknown"


def ahead_ms(evaluated_at_ms: int, now_ms: int) -> int:
    """How far the time of a batch is ahead of the wall clock; 0 up to `AHEAD_AFTER_MS`, which means nothing.

    A clock that was ahead has dated the batch, and was set back since; or the machines' clocks differ.
    """
    found_ms = evaluated_at_ms - now_ms
    return found_ms if found_ms > AHEAD_AFTER_MS else 0


@dataclass(frozen=True, slots=True)
class JobSigns:
    """What this machine knows of a job, looked up when it is called.

    Attributes:
        process: The process of this machine that holds the job's lock, as text; None if none does.
        last_wait_ms: When the job was last seen to wait for usage, by its wall clock; None if that is not known here.
    """

    process: Callable[[], str | None]
    last_wait_ms: Callable[[], int | None] = lambda: None
