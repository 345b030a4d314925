"""A thread that takes steps until it is stopped."""

from threading import Event

from pipeline.background import Background


def test_steps_are_taken_until_it_is_closed() -> None:
    taken: list[int] = []
    enough = Event()

    def step() -> float:
        taken.append(len(taken))
        if len(taken) == 3:
            enough.set()
        return 0.0

    thread = Background("test", step, failed=lambda _: None)
    thread.start()
    assert enough.wait(5)
    thread.close()
    after = len(taken)
    assert taken == list(range(after))
    assert Event().wait(0.02) is False
    assert len(taken) == after


def test_a_step_that_raises_ends_the_thread_and_is_reported_once() -> None:
    failures: list[BaseException] = []
    told = Event()

    def step() -> float:
        message = "no more"
        raise RuntimeError(message)

    def failed(failure: BaseException) -> None:
        failures.append(failure)
        told.set()

    thread = Background("test", step, failed)
    thread.start()
    assert told.wait(5)
    thread.close()
    assert [str(failure) for failure in failures] == ["no more"]


def test_closing_does_not_wait_for_the_rest_between_steps() -> None:
    began = Event()

    def step() -> float:
        began.set()
        return 3_600.0

    thread = Background("test", step, failed=lambda _: None)
    thread.start()
    assert began.wait(5)
    thread.close(timeout_seconds=5)
    thread.close()
