"""Python's garbage collector, held back while many objects are made that all stay alive."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Pause the garbage collector, of all threads.

    While a text or a batch of messages is read, the number of objects only grows. The collector would look through
    all of them again and again and find nothing, which takes a third to a half of the time. If two threads pause it,
    it goes on with the first of them that ends.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
