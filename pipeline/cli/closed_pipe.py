"""Commands that go on until they are stopped also end when nobody reads any more what they print (`| head`)."""

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def until_reader_goes() -> Iterator[None]:
    """End the block, without a complaint, at the first output that nobody reads."""
    try:
        yield
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Send what is still printed nowhere; else Python complains about it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def reader_has_gone() -> bool:
    """Whether standard output is a pipe or a terminal that nobody reads any more. Asks without printing anything."""
    try:
        number = sys.stdout.fileno()
    except OSError:  # not a file: it has no reader
        return False
    poll = select.poll()
    poll.register(number, 0)  # errors and hang-ups are told in any case
    return any(what & (select.POLLERR | select.POLLHUP) for _, what in poll.poll(0))
