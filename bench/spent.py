"""What many held clients cost, by phase."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from bench.cpu import cpu_seconds

WALL: Final = ("decide", "hold", "store", "send")
FIGURES: Final = (*WALL, "all", "cpu", "broker", "late")


class Spent:
    """Seconds by phase. Of phases inside each other the outer one does not count what the inner one took.

    Args:
        broker_pid: Of the broker; None: there is none.
    """

    def __init__(self, broker_pid: int | None) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.late_seconds = 0.0
        self._broker_pid = broker_pid
        self._inner: list[float] = []
        self._began = self._cpu_seconds()

    @contextmanager
    def on(self, phase: str) -> Iterator[None]:
        """Count what is done inside."""
        began = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            took = time.perf_counter() - began
            self.seconds[phase] += took - self._inner.pop()
            if self._inner:
                self._inner[-1] += took

    def counted(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, counted."""

        def run(*arguments: Any, **named: Any) -> Any:
            with self.on(phase):
                return call(*arguments, **named)

        return run

    def take(self) -> dict[str, float]:
        """Milliseconds of each phase since the last call."""
        taken = {phase: 1000 * self.seconds[phase] for phase in WALL}
        taken["all"] = sum(taken.values())
        for name, began, ended in zip(("cpu", "broker"), self._began, self._cpu_seconds(), strict=True):
            taken[name] = 1000 * (ended - began)
        taken["late"] = 1000 * self.late_seconds
        self.begin()
        return taken

    def begin(self) -> None:
        """Count from now on."""
        self.seconds.clear()
        self.late_seconds = 0.0
        self._began = self._cpu_seconds()

    def _cpu_seconds(self) -> tuple[float, float]:
        return time.process_time(), cpu_seconds(self._broker_pid) if self._broker_pid else 0.0
