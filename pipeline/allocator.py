"""Returning freed memory to the system, so that a process that runs for months does not keep its peak."""

import ctypes
import os
import sys
from collections.abc import Sequence
from typing import Final

_M_ARENA_MAX: Final = -8
"""As glibc's malloc.h has it."""
_FEW_ARENAS: Final = 2
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = 131_072


def return_memory_at_once() -> None:
    """Make pyarrow return freed memory to the system at once. Must be called before pyarrow is imported.

    Otherwise the job keeps the memory of its largest read of a table, tens of MB, until it ends. A value that the user
    has set is kept. Computations on millions of rows become 10 to 20 % slower; a micro-batch has far fewer rows.
    """
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "0")


def share_one_allocator() -> None:
    """Make pyarrow use the C library's allocator, with two arenas. Must be called before pyarrow is imported.

    pyarrow's own allocator keeps some 15 MB of its own, and glibc begins an arena for each of the first threads,
    eight per core. And once a large block was freed, glibc takes blocks of that size from arenas, in which they leave
    holes; now they go back to the system. For a process that asks for little and must stay small. Values that the user
    has set are kept. Does nothing about arenas and blocks with a C library other than glibc.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None and "MALLOC_ARENA_MAX" not in os.environ:
        set_option(_M_ARENA_MAX, _FEW_ARENAS)
    if set_option is not None and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        set_option(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def return_query_memory_soon() -> None:
    """Make delta-rs return freed memory to the system soon. Must be called before deltalake is imported.

    Its engine has an allocator of its own (jemalloc), which keeps what is freed for 10 s, for each of many threads: a
    process that asks all the time then holds twice what a query needs. A value that the user has set is kept.
    """
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:200,muzzy_decay_ms:0,narenas:1")


class _WithoutPandas:
    """A finder of modules that finds no pandas."""

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: object = None) -> None:
        if name == "pandas":
            message = "this process does without pandas"
            raise ModuleNotFoundError(message, name=name)


def do_without_pandas() -> None:
    """Keep pyarrow from importing pandas, which it does with its first array, only to ask whether it is one of pandas'.

    That takes 40 MB. For a process that never leaves pandas' place to anybody else: it can not be undone.
    """
    sys.meta_path.insert(0, _WithoutPandas())


def return_freed_memory() -> None:
    """Return memory that is free inside the C library to the system; takes a few milliseconds.

    glibc by itself returns only free memory at the end of an arena, not free memory between two blocks in use, and
    threads that come and go use different arenas. In a job that had started its query fifty times, half of the memory
    in these arenas was free. Does nothing with a C library other than glibc.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
