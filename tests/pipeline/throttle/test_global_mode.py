"""`kquota mode shadow` while the job runs: everyone is let go at once, nobody is throttled, decisions go on."""

from tests.pipeline.throttle.loop import HandLoop, quota

QUOTAS = (quota("alice", 1_000.0), quota("bob", 1_000.0), quota("<default>", 1_000.0))


def throttled_loop() -> HandLoop:
    loop = HandLoop(*QUOTAS)
    assert loop.batch(alice=60_000, bob=12_000, carol=20_000) == 3
    return loop


def test_switching_to_shadow_releases_every_held_throttle_at_once() -> None:
    loop = throttled_loop()
    loop.advance(100)
    assert loop.edit(*QUOTAS, mode="shadow") == 3
    released = {(record.user, record.action, record.cause) for record in loop.records[3:]}
    assert released == {(user, "release", "quota_changed") for user in ("alice", "bob", "carol")}
    assert len(loop.purgatory) == 0


def test_in_shadow_nothing_is_published_and_every_violation_is_recorded() -> None:
    loop = throttled_loop()
    loop.edit(*QUOTAS, mode="shadow")
    told = len(loop.records)
    loop.advance(1_000, step_ms=10)
    for _ in range(5):
        assert loop.batch(alice=60_000, dora=60_000) == 0
        decisions = loop.decisions.to_pylist()
        assert {(row["user"], row["mode"], row["applied"]) for row in decisions} >= {("dora", "shadow", False)}
        assert all(row["mode"] == "shadow" and not row["applied"] for row in decisions)
        loop.advance(1_000, step_ms=10)
    assert len(loop.records) == told


def test_switching_back_throttles_whoever_is_over_again() -> None:
    loop = throttled_loop()
    loop.edit(*QUOTAS, mode="shadow")
    loop.advance(1_000, step_ms=10)
    loop.edit(*QUOTAS)
    assert loop.batch(alice=60_000) == 1
    assert loop.told()[-1][:2] == ("throttle", "violation")


def test_a_batch_that_pinned_the_quotas_before_the_switch_keeps_nobody_held() -> None:
    loop = throttled_loop()
    pinned = loop.quotas
    loop.edit(*QUOTAS, mode="shadow")
    shadow, loop.quotas = loop.quotas, pinned
    loop.advance(100)
    records = len(loop.records)
    assert loop.batch(dora=60_000) == 0, "decided by the version it has pinned, and told nobody"
    assert loop.decisions["mode"].to_pylist() == ["enforce"]
    loop.quotas = shadow
    assert loop.batch(erin=1) == 0, "the next batch is decided by the new one"
    assert loop.purgatory.quotas_changed(shadow) == 0, "what the poller says every trigger"
    assert (len(loop.records), len(loop.purgatory)) == (records, 0)
