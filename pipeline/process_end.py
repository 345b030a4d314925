"""The end of a program whose libraries have threads of their own.

Arrow's threads may still free memory that belongs to Python when the program is done. If the interpreter takes itself
down meanwhile, it ends such a thread in the middle of C++ code. C++ then aborts the process: "terminate called without
an active exception", exit code 134, after a result that was printed in full. So the process ends before that point.
"""

import atexit
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

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
    call. Call it once, from the main thread.

    Args:
        program: returns the exit code, or raises `SystemExit`. If it raises anything else, the interpreter prints that
            and the exit code is 1.
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
