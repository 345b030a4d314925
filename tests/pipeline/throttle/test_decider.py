"""What checks may see of a batch that is decided but not stored yet."""

from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

from pipeline.clock import Moment
from pipeline.settings.model import EngineSettings
from pipeline.throttle import assembly
from pipeline.throttle.assembly import new_engine
from quota.decisions import Evaluation
from quota.errors import InvalidUsage
from quota.throttle_time import ThrottleCaps
from tests.pipeline.throttle.factories import ALICE, clients, due
from tests.pipeline.throttle.loop import HandLoop
from tests.quota.factories import table
from tests.waiting import PATIENCE_SECONDS, never

NOTHING = table([])


def evaluation_of(batch_id: int, at_ms: int) -> Evaluation:
    return Evaluation("query", batch_id, at_ms, quota_version=1)


def test_a_look_waits_until_the_usage_of_the_batch_is_stored() -> None:
    loop = HandLoop({"user": "alice", "client_id": "", "producer_byte_rate": 100.0})
    seen: list[int] = []
    is_stored = Event()

    def look() -> None:
        alice = clients(ALICE)
        zero = np.zeros(1, np.int64)
        facts, _ = loop.decider.check(due(), loop.decider.keys_of(alice, zero), lambda _: alice, zero)
        seen.append(facts.batch_id)

    check = Thread(target=look)

    def wait_until_stored() -> None:
        check.start()
        assert never(lambda: bool(seen)), "a check must not see usage that is not stored"
        is_stored.set()

    loop.decider.decide(
        loop.quotas, NOTHING, evaluation_of(7, 1_000), Moment(0, 1_000), wait_until_stored=wait_until_stored
    )
    check.join(PATIENCE_SECONDS)
    assert is_stored.is_set()
    assert seen == [7]


def test_no_check_is_made_after_a_batch_that_failed_while_it_was_recorded() -> None:
    loop = HandLoop({"user": "alice", "client_id": "", "producer_byte_rate": 1_000.0})
    loop.batch(alice=20_000)
    with pytest.raises(InvalidUsage):
        loop.decider.decide(loop.quotas, NOTHING, evaluation_of(8, 2_000), Moment(0, 2_000))
    with pytest.raises(InvalidUsage):
        loop.advance(10_000)


@pytest.mark.parametrize("are_of_new_queries", [False, True])
def test_a_client_is_released_although_batches_without_usage_go_on(are_of_new_queries: bool) -> None:
    """Garbage and empty arrays make batches, too; the time of checks must not begin again with each of them."""
    loop = HandLoop({"user": "alice", "client_id": "", "producer_byte_rate": 1_000.0})
    loop.batch(alice=20_000)
    assert len(loop.purgatory) == 1
    for number in range(150):
        loop.advance(200, 200)
        query_id = f"query {number}" if are_of_new_queries else "query"
        evaluation = Evaluation(query_id, number + 1, loop.decider.last.least_ms(query_id), quota_version=1)
        loop.decider.decide(loop.quotas, NOTHING, evaluation, loop.clock.now())
    assert len(loop.purgatory) == 0
    assert loop.told()[-1][:2] == ("release", "expired")


def test_each_setting_reaches_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(assembly, "QuotaEngine", given.update)
    caps = {"producer_byte_rate_cap": 70, "consumer_byte_rate_cap": "none", "request_percentage_cap": "window"}
    plain = {"num_samples": 4, "sample_window_ms": 250, "carry_debt": False}
    new_engine(EngineSettings.model_validate(plain | caps), "broker")
    assert given == {**plain, "scope": "broker", "max_throttle_time": ThrottleCaps(70, "none", "window")}
