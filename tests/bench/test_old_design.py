"""The 0.8 purgatory that the benchmark compares with, checked with the vectors of its own test (3.5)."""

from bench.purgatory.designs import OldPurgatory, OldRequest

FAR_MS = 100_000


def watched(purgatory: OldPurgatory, *keys: int, delay_ms: int = FAR_MS) -> OldRequest:
    request = OldRequest(delay_ms, completes_at_ms=10**9)
    assert not purgatory.watch(request, keys, now_ms=0)
    return request


def test_3_5_satisfaction_and_expiry() -> None:
    purgatory = OldPurgatory()
    first, second = watched(purgatory, 1, delay_ms=20), watched(purgatory, 2, delay_ms=200_000)
    purgatory.advance(19, most_turns=9)
    assert purgatory.expired == 0
    purgatory.advance(20, most_turns=9)
    assert purgatory.expired == 1
    assert not first.satisfy()
    assert second.satisfy()
    purgatory.advance(200_000, most_turns=9)
    assert purgatory.expired == 1


def test_a_request_that_can_complete_is_not_watched() -> None:
    purgatory = OldPurgatory()
    assert purgatory.watch(OldRequest(FAR_MS, completes_at_ms=5), [1], now_ms=5)
    assert (purgatory.watched, purgatory.delayed) == (0, 0)


def test_3_5_purge_by_the_threshold_of_0_8_2() -> None:
    purgatory = OldPurgatory(purge_threshold=5)
    _, second, _ = watched(purgatory, 1), watched(purgatory, 1, 2), watched(purgatory, 2, 3)
    gauges = [(purgatory.watched, purgatory.delayed)]
    second.satisfy()
    purgatory.purge()
    gauges.append((purgatory.watched, purgatory.delayed))
    watched(purgatory, 1)
    watched(purgatory, 1)
    purgatory.purge()
    gauges.append((purgatory.watched, purgatory.delayed))
    assert gauges == [(5, 3), (3, 3), (5, 4)]
