"""Shows something, and shows it again when it has changed."""

from collections.abc import Callable
from typing import Final, TypeVar

PERIOD_SECONDS: Final = 1.0

Value = TypeVar("Value")


def watch(read: Callable[[], Value], show: Callable[[Value], None], wait: Callable[[float], bool]) -> None:
    """Show a value, then look at it every second and show it when it is no longer equal, until told to stop.

    Args:
        read: Reads the value. What it raises ends the watch.
        show: Prints a value.
        wait: Waits some seconds; True = stop.
    """
    shown = read()
    show(shown)
    while not wait(PERIOD_SECONDS):
        value = read()
        if value != shown:
            show(value)
            shown = value
