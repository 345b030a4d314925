"""Brings messages to one receiver, in order, on a thread of its own. One that is down keeps no other waiting."""

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final

from pipeline.alerts.metrics import ReceiverCounts
from pipeline.alerts.payload import Message
from pipeline.alerts.receiver import Answer, Receiver
from pipeline.background import Background
from pipeline.errors import first_line

log = logging.getLogger(__name__)

_FIRST_REST_MS: Final = 1_000
_IDLE_SECONDS: Final = 0.1
_END_SECONDS: Final = 2.0


def rest_ms(failures: int, longest_ms: int, jitter: float) -> int:
    """How long to rest after some failures in a row: twice as long each time, capped, and spread by chance.

    Args:
        failures: In a row, at least 1.
        longest_ms: The cap.
        jitter: From 0 to 1. The rest is between half of the whole and all of it.

    >>> [rest_ms(failures, 10_000, 1.0) for failures in (1, 2, 4, 5, 900)]
    [1000, 2000, 8000, 10000, 10000]
    >>> rest_ms(5, 10_000, 0.0)
    5000
    """
    whole_ms = min(_FIRST_REST_MS << min(failures - 1, 20), longest_ms)
    return round(whole_ms * (0.5 + jitter / 2))


class Delivery:
    """The queue of one receiver. `put` and `waiting` are for any thread.

    Args:
        receiver: Whom it brings to; used by the queue's own thread alone.
        messages: What an earlier process left undelivered, oldest first.
        most: How many may wait. When there are more, the oldest is dropped, counted and told in the log.
        longest_rest_ms: The cap of `rest_ms`.
        counts: Hears of every message.
        steady_seconds: A clock that never steps.
    """

    def __init__(
        self,
        receiver: Receiver,
        messages: Iterable[Message],
        most: int,
        longest_rest_ms: int,
        counts: ReceiverCounts,
        steady_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = receiver.name
        self._receiver = receiver
        self._queue: deque[Message] = deque()
        self._under_way: Message | None = None
        self._most = most
        self._longest_rest_ms = longest_rest_ms
        self._counts = counts
        self._steady_seconds = steady_seconds
        self._failures = 0
        self._not_before = 0.0
        self._lock = Lock()
        self._thread = Background(f"alerts-{receiver.name}", self.step, self._ended)
        self.put(messages)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def close(self) -> None:
        """End after the message under way, or after two seconds. What waits is left for the next process."""
        self._thread.close(_END_SECONDS)
        self._receiver.close()

    def put(self, messages: Iterable[Message]) -> None:
        """Add messages at the end."""
        dropped = 0
        with self._lock:
            for message in messages:
                self._queue.append(message)
                if len(self._queue) > self._most:
                    dropped += len(self._queue.popleft()["alerts"])
        if dropped:
            self._counts.dropped(dropped)
            log.warning("%s: %d alerts were dropped, as too many messages wait", self.name, dropped)

    def waiting(self) -> list[Message]:
        """What is not delivered, oldest first; also what is just being sent."""
        with self._lock:
            return [*([] if self._under_way is None else [self._under_way]), *self._queue]

    def step(self) -> float:
        """Try to send the oldest message, if its time has come; returns for how many seconds to rest."""
        left = self._not_before - self._steady_seconds()
        if left > 0:
            return min(left, _IDLE_SECONDS)
        with self._lock:
            if self._under_way is None and self._queue:
                self._under_way = self._queue.popleft()
            message = self._under_way
        if message is None:
            return _IDLE_SECONDS
        answer = self._sent(message)
        if answer.verdict == "later":
            return self._failed(answer)
        self._settle(answer, len(message["alerts"]))
        return 0.0

    def _sent(self, message: Message) -> Answer:
        try:
            return self._receiver.send(message)
        except Exception as exc:  # a defect must not end the thread: what waits would never arrive
            log.exception("%s: a message could not be sent", self.name)
            return Answer("later", first_line(exc))

    def _settle(self, answer: Answer, alerts: int) -> None:
        with self._lock:
            self._under_way = None
        if answer.verdict == "taken":
            self._counts.sent(alerts)
        else:
            self._counts.refused(alerts)
            log.error("%s: %d alerts are lost, it would refuse them again: %s", self.name, alerts, answer.told)
        if self._failures:
            log.info("%s: answers again after %d failures", self.name, self._failures)
        self._failures = 0

    def _failed(self, answer: Answer) -> float:
        self._failures += 1
        self._counts.failed()
        rest_seconds = rest_ms(self._failures, self._longest_rest_ms, random.random()) / 1000  # noqa: S311 - no secret
        self._not_before = self._steady_seconds() + rest_seconds
        told = log.warning if self._failures == 1 else log.debug
        told("%s: %s; tried again with back-off until it works", self.name, answer.told)
        return 0.0

    def _ended(self, failure: BaseException) -> None:
        log.error("%s: no alert is sent any more: %s", self.name, failure)
