"""The queue of one receiver: in order, patient, bounded, and one that is away is asked less and less often."""

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from pipeline.alerts.alerter import AlertsMetrics, Delivery, rest_ms
from pipeline.alerts.receivers import Webhook
from pipeline.settings.model import AlertsSettings
from tests.pipeline.alerts.receiving import Inbox, receiving
from tests.waiting import wait_until


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with receiving() as running:
        yield running


def message(number: int, alerts: int = 1) -> dict[str, Any]:
    return {"number": number, "alerts": [{}] * alerts}


class Queue:
    """A delivery to an inbox, with its clock and its counts."""

    def __init__(self, inbox: Inbox, most: int = 100) -> None:
        self.seconds = 0.0
        self.registry = CollectorRegistry()
        counts = AlertsMetrics(self.registry).of_receiver("ops")
        limits = AlertsSettings(queue_messages=most, longest_retry_ms=60_000)
        hook = Webhook("ops", inbox.url, None, 60_000)
        self.delivery = Delivery(hook, [], limits, counts, lambda: self.seconds)

    def count(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"kquota_alerts_{name}_total", {"receiver": "ops"})


def numbers(inbox: Inbox) -> list[int]:
    return [message["number"] for message in inbox.taken]


def test_messages_arrive_in_order_and_the_first_that_fails_keeps_the_others(inbox: Inbox) -> None:
    queue = Queue(inbox)
    queue.delivery.put([message(1), message(2)])
    inbox.answers = [200, 500]
    queue.delivery.step()
    queue.delivery.step()
    queue.delivery.put([message(3)])
    assert [one["number"] for one in queue.delivery.waiting()] == [2, 3]
    queue.delivery.step()
    assert numbers(inbox) == [1, 2], "it rests"
    queue.seconds += 1
    for _ in range(3):
        queue.delivery.step()
    assert numbers(inbox) == [1, 2, 2, 3]
    assert queue.delivery.waiting() == []
    assert (queue.count("sent"), queue.count("failed_tries")) == (3, 1)


@pytest.mark.parametrize(
    ("failures", "whole_ms"), [(1, 1_000), (2, 2_000), (3, 4_000), (6, 32_000), (7, 60_000), (9_999, 60_000)]
)
def test_rests_double_up_to_the_cap_and_are_spread(failures: int, whole_ms: int) -> None:
    assert rest_ms(failures, 60_000, 0.0) == whole_ms // 2
    assert rest_ms(failures, 60_000, 0.999) == pytest.approx(whole_ms, rel=0.01)


def test_a_success_forgets_the_failures_before_it(inbox: Inbox) -> None:
    queue = Queue(inbox)
    inbox.answers = [500] * 8 + [200, 500]
    queue.delivery.put([message(1), message(2)])
    for _ in range(10):
        queue.delivery.step()
        queue.seconds += 60
    queue.seconds -= 59
    queue.delivery.step()
    assert numbers(inbox)[-2:] == [2, 2]


def test_the_oldest_is_dropped_when_too_many_wait_and_what_is_under_way_is_not(
    inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue(inbox, most=2)
    inbox.answers = [500]
    queue.delivery.put([message(1)])
    queue.delivery.step()
    queue.delivery.put([message(2, alerts=7), message(3), message(4)])
    assert [one["number"] for one in queue.delivery.waiting()] == [1, 3, 4]
    assert queue.count("dropped") == 7
    assert "ops: 7 alerts were dropped, as too many messages wait" in caplog.text


def test_a_message_that_would_be_refused_again_is_passed_over_and_told(
    inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue(inbox)
    inbox.answers = [413]
    queue.delivery.put([message(1, alerts=3), message(2)])
    queue.delivery.step()
    queue.delivery.step()
    assert (numbers(inbox), queue.count("refused"), queue.count("sent")) == ([1, 2], 3, 1)
    assert "ops refuses 3 alerts, which are dropped: 413" in caplog.text


def test_a_defect_of_a_receiver_does_not_end_the_queue(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue(inbox)
    queue.delivery.put([message(1)])
    with monkeypatch.context() as broken:
        broken.setattr(Webhook, "send", lambda *_arguments: 1 / 0)
        queue.delivery.step()
    assert "ZeroDivisionError" in caplog.text
    queue.seconds += 60
    queue.delivery.step()
    assert numbers(inbox) == [1]


def test_one_line_of_the_log_tells_an_outage_and_one_its_end(inbox: Inbox, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    queue = Queue(inbox)
    inbox.answers = [500] * 5
    queue.delivery.put([message(1)])
    for _ in range(6):
        queue.delivery.step()
        queue.seconds += 60
    assert [line for line in caplog.messages if line.startswith("ops")] == [
        "ops: 500 Internal Server Error; retried with back-off until it works",
        "ops answers after 5 failures",
    ]


def test_its_thread_sends_by_itself_and_leaves_what_waits_at_the_end(inbox: Inbox) -> None:
    queue = Queue(inbox)
    queue.delivery.put([message(1)])
    queue.delivery.start()
    wait_until(lambda: numbers(inbox) == [1] and not queue.delivery.waiting(), "the message")
    inbox.answers = [500] * 99
    queue.delivery.put([message(2), message(3)])
    wait_until(lambda: len(inbox.requests) == 2, "the try that fails")
    queue.delivery.close()
    assert [one["number"] for one in queue.delivery.waiting()] == [2, 3]
