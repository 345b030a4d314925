"""Runs a part of a test in a child of `fork()`, which has no thread of this process but the one that runs the test."""

import os
import select
import signal
from collections.abc import Callable

from tests.waiting import PATIENCE_SECONDS


def in_a_child(work: Callable[[], object]) -> str:
    """What `work` returns in a child, as text; how it fails there; "no answer" if it takes too long."""
    answers, answer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(work())
        except BaseException as exc:
            text = f"{type(exc).__name__}: {exc}"
        os.write(answer, text.encode()[:4_096])
        os._exit(0)
    os.close(answer)
    try:
        has_answered, _, _ = select.select([answers], [], [], PATIENCE_SECONDS)
        return os.read(answers, 4_096).decode() if has_answered else "no answer"
    finally:
        os.close(answers)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
