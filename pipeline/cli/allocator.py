"""How pyarrow's allocator treats the memory of a process that lives for months."""

import os


def give_back_at_once() -> None:
    """Have memory that pyarrow has freed given back to the system at once; to be called before pyarrow is imported.

    Else a job would keep, for as long as it lives, what the largest read of a table took: tens of MB. What the user has
    set is kept. Costs a tenth or two of the time of computations on millions of rows, of which a micro-batch has none.
    """
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "0")
