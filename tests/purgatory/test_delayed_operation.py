"""A delayed operation completes exactly once."""

import threading

from purgatory.delayed_operation import DelayedOperation


class Recorded(DelayedOperation):
    """Completes when it is told that it can. Notes what happens to it."""

    def __init__(self, delay_ms: int = 1000, *, completable: bool = False) -> None:
        super().__init__(delay_ms)
        self.completable = completable
        self.life: list[str] = []

    def try_complete(self) -> bool:
        return self.completable and self.force_complete()

    def on_complete(self) -> None:
        self.life.append("completed")

    def on_expiration(self) -> None:
        self.life.append("expired")


def test_expiry_completes_first_and_then_expires() -> None:
    operation = Recorded()
    operation.run()
    assert operation.life == ["completed", "expired"]
    assert operation.is_completed


def test_an_operation_that_was_completed_does_not_expire() -> None:
    operation = Recorded(completable=True)
    assert operation.safe_try_complete()
    operation.run()
    assert not operation.force_complete()
    assert operation.life == ["completed"]


def test_of_many_threads_one_completes_it() -> None:
    operation = Recorded()
    start = threading.Barrier(8)
    wins: list[bool] = []

    def race() -> None:
        start.wait()
        wins.append(operation.force_complete())

    racers = [threading.Thread(target=race) for _ in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert sorted(wins) == [False] * 7 + [True]
    assert operation.life == ["completed"]


def test_3_4_2_or_else_runs_only_when_the_first_try_fails() -> None:
    ran: list[str] = []
    assert not Recorded().safe_try_complete_or_else(lambda: ran.append("else"))
    assert ran == ["else"]
    assert Recorded(completable=True).safe_try_complete_or_else(lambda: ran.append("never"))
    assert ran == ["else"]


def test_or_else_tries_again_because_the_event_may_have_come_in_between() -> None:
    operation = Recorded()

    def event() -> None:
        operation.completable = True

    assert operation.safe_try_complete_or_else(event)
    assert operation.life == ["completed"]


def test_3_4_1_the_lock_is_held_while_trying() -> None:
    seen: list[bool] = []

    class Looking(Recorded):
        def try_complete(self) -> bool:
            other = threading.Thread(target=lambda: seen.append(self._check_lock.acquire(blocking=False)))
            other.start()
            other.join()
            return False

    Looking().safe_try_complete()
    Looking().safe_try_complete_or_else(lambda: None)
    assert seen == [False] * 3
