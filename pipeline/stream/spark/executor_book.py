"""Which executors a session has had, and what there is to say when they come, go, or stay away."""

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pipeline.stream.errors import ExecutorsMissing

MISSING_AFTER_SECONDS: Final = 10.0
SAID_AGAIN_SECONDS: Final = 300.0
_CAUSES: Final = (
    (re.compile(r"worker lost|decommission", re.IGNORECASE), "its worker is gone"),
    (re.compile(r"code 137|SIGKILL", re.IGNORECASE), "it was killed, perhaps for a lack of memory"),
    (re.compile(r"code 52\b|OutOfMemory"), "it had too little memory"),
    (re.compile(r"disassociated|heartbeat", re.IGNORECASE), "it does not answer any more"),
)

Line = tuple[int, str]
"""Level and text of a line for the log."""


@dataclass(frozen=True, slots=True)
class Loss:
    """An executor that has gone.

    Attributes:
        place: Its host and port.
        reason: In Spark's words; "" if Spark gives none.
    """

    place: str
    reason: str

    @property
    def cause(self) -> str:
        """The reason in plain words, and Spark's own."""
        plain = next((words for pattern, words in _CAUSES if pattern.search(self.reason)), "")
        own = self.reason.strip().rstrip(".")
        return f"{plain} ({own})" if plain and own else own or "no reason is known"


class ExecutorBook:
    """The executors of one application. Knows neither Spark nor a clock.

    Args:
        master: The cluster's address, for the lines.
        wanted: What one executor asks for, in words.
    """

    def __init__(self, master: str, wanted: str) -> None:
        self._master = master
        self._wanted = wanted
        self._places: dict[str, str] = {}
        self._none_since: float | None = None
        self._say_next = MISSING_AFTER_SECONDS

    def note(
        self, places: Mapping[str, str], losses: Mapping[str, Loss], now_seconds: float, are_wanted: bool = True
    ) -> Iterator[Line]:
        """Note what there is now; yields what to say about it.

        Args:
            places: The executors that are there: host and port by id.
            losses: Those that have gone since the last call, by id.
            now_seconds: Of a clock that never goes back.
            are_wanted: False where it is right that there are none.
        """
        came = {executor: place for executor, place in places.items() if executor not in self._places}
        self._places = dict(places)
        for executor, loss in losses.items():
            yield logging.WARNING, f"executor {executor} at {loss.place} is lost: {loss.cause}. {self._remedied()}"
        if came:
            names = ", ".join(f"{executor} at {place}" for executor, place in came.items())
            yield logging.INFO, f"{_counted(len(places))} at {self._master}; new: {names}"
        if places or not are_wanted:
            self._none_since, self._say_next = None, MISSING_AFTER_SECONDS
            return
        if self._none_since is None:
            self._none_since = now_seconds
        waited_seconds = now_seconds - self._none_since
        if waited_seconds >= self._say_next:
            self._say_next = waited_seconds + SAID_AGAIN_SECONDS
            yield logging.WARNING, str(ExecutorsMissing(self._master, self._wanted, waited_seconds))

    def _remedied(self) -> str:
        left = len(self._places)
        where = f"on the {_counted(left)} left" if left else "when another executor comes"
        return f"Its tasks run again {where}; no usage is lost or counted twice"


def _counted(count: int) -> str:
    return "1 executor" if count == 1 else f"{count} executors"
