"""How the allocators of pyarrow and of the C library treat the memory of a process that lives for months."""

import ctypes
import os


def give_back_at_once() -> None:
    """Have memory that pyarrow has freed given back to the system at once; to be called before pyarrow is imported.

    Else a job would keep, for as long as it lives, what the largest read of a table took: tens of MB. What the user has
    set is kept. Costs a tenth or two of the time of computations on millions of rows, of which a micro-batch has none.
    """
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "0")


def give_back_freed() -> None:
    """Give the system what the C library keeps of memory that all others have freed; takes a few milliseconds.

    glibc gives back the end of an arena, never what lies free between two pieces in use, and threads come and go in
    arenas of their own: of a job that had started its query again fifty times, half of what it held there was free.
    Does nothing where the C library is another.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
