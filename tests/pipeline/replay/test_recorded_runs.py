"""What replays, the shadow of `observe` and `throttles verify` answered in November.

Each run is generated from a seed: with edits, restarts, an outage, clocks set back, late usage, several batches at one
instant. The answers stay equal to the bit. They were recorded anew when throttles began to hold users as a whole.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest

from pipeline.observe.observation import Observation
from pipeline.replay.request import (
    Coverage,
    Plan,
    ReplayRequest,
    Timeline,
    live_timeline,
    newest_start,
    old_batches,
)
from pipeline.replay.run import run
from pipeline.replay.usage_batches import Source
from pipeline.replay.verification import verify
from quota.snapshot import QuotaSnapshot
from tests.faults.hand_job import HandJob
from tests.pipeline.observe.test_findings import T0_MS, second_of
from tests.pipeline.replay.histories import History
from tests.quota.factories import quota_row

RATE = 10_000.0
SHARES = (("alice", "a", 1.1), ("alice", "b", 0.3), ("bob", "", 0.2), ("carol", "c", 4))
"""Who uses at most how many times the rate."""
Answer = tuple[int, ...]


def digest(rows: Iterable[Any]) -> int:
    return crc32(repr(sorted(rows)).encode())


def replayed(request: ReplayRequest) -> list[Answer]:
    """Of each replay the sums of windows, held ms and deferred bytes, and a checksum over the clients."""
    answers = []
    for result in run(Plan.of(request), lambda done, whole: None):
        figures = {
            tuple(client): (one.windows, one.throttle_ms, one.deferred_bytes)
            for client, one in result.outcomes.items()
            if one.windows or one.throttle_ms or one.deferred_bytes
        }
        sums = [sum(column) for column in zip(*figures.values(), strict=True)] or [0, 0, 0]
        answers.append((*sums, digest(figures.items())))
    return answers


def lived(folder: Path, seed: int) -> HandJob:
    """A job with three clients that ignore their throttles, edited, restarted, and down for a while."""
    job = HandJob(folder, {"producer_byte_rate": RATE, "consumer_byte_rate": 4 * RATE}, in_memory=True)
    job.start()
    draw = Random(seed)
    for step in range(250):
        if step in {70, 160}:
            job.edit({"producer_byte_rate": RATE * draw.choice((0.4, 0.8, 3))})
        if step in {100, 200}:
            job.start(with_checkpoint=step == 100)
        if step == 130 and seed % 2:
            job.clock.advance(90_000)
        if step == 180 and seed % 3 == 0:
            job.set_clocks(-45_000, -45_000)
        now_ms = job.clock.wall_ms
        events = [
            {"event_time_ms": now_ms + 199 - draw.choice((0, 0, 0, 3_000)), "user": user, "client_id": client_id}
            | {"produced_bytes": draw.randrange(round(RATE * share)), "fetched_bytes": draw.choice((None, 20_000))}
            for user, client_id, share in SHARES
            if draw.random() < (0.9 if user != "carol" or step % 80 < 20 else 0)
        ]
        job.send(json.dumps(events).encode())
        for _ in range(20):
            job.clock.advance(10)
            job.purgatory.tick()
        job.step()
    job.store()
    return job


def request_of(job: HandJob, since_ms: int = 0, has_start: bool = False) -> ReplayRequest:
    settings, root = job.settings, job.settings.tables.root
    source: Source = "usage"
    covered = Coverage.of(root, source, since_ms, 10**14)
    since_ms, until_ms = covered.since_ms, covered.until_ms
    return ReplayRequest(
        root,
        source,
        "cluster",
        settings,
        since_ms,
        until_ms,
        (live_timeline(job.quota_table, job.quotas, 0),),
        old=old_batches(root, since_ms, until_ms, settings.stream.max_decision_age_ms)[0],
        start=newest_start(root, settings.engine, since_ms) if has_start else None,
    )


def of_history(folder: Path, seed: int) -> list[Answer]:
    source: Source = "usage" if seed % 2 else "usage_by_second"
    return replayed(History(Random(seed), source, (1_000, 3_000)[seed % 3 == 0], seed % 5 == 0).write(str(folder)))


def of_job(folder: Path, seed: int) -> list[Answer]:
    """The whole run; a part of it from a start that is stored; and what `throttles verify` says of it."""
    job = lived(folder, seed)
    whole = request_of(job)
    part = request_of(job, whole.since_ms + 20_000, has_start=True)
    found = verify(job.settings.tables.root, "cluster", job.quotas.at, 0, 10**14, lambda done, whole: None)
    return [*replayed(whole), *replayed(part), (found.batches, found.decisions, len(found.mismatches))]


def of_candidate(folder: Path, seed: int) -> list[Answer]:
    """The whole run with other quotas; a part of it from a start, with those, and with some that bind no client."""
    job, draw = lived(folder, seed), Random(seed)
    bounds = [draw.choice((0.2, 0.6, 2.0)) * RATE for _ in range(3)]
    alice = quota_row("alice", producer_byte_rate=bounds[1], consumer_byte_rate=bounds[2])
    tables = [
        [quota_row("<default>", producer_byte_rate=bounds[0]), alice],
        [quota_row("<default>", producer_byte_rate=90 * RATE)],
    ]
    quotas = tuple(Timeline((0,), (QuotaSnapshot.from_rows(rows, 0),)) for rows in tables)
    whole = request_of(job)
    part = request_of(job, whole.since_ms + 20_000, has_start=True)
    return [*replayed(replace(whole, quotas=quotas[:1])), *replayed(replace(part, quotas=quotas))]


def of_shadow(_: Path, seed: int) -> list[Answer]:
    """Five minutes of four clients on two brokers, their quotas read again with others in them."""
    draw = Random(seed)
    seen = Observation(lag_ms=1_000, is_exact=True)
    for second in range(300):
        if second % 120 == 0:
            rows = [
                quota_row("alice", producer_byte_rate=draw.choice((500.0, 4_000.0)), request_percentage=5.0),
                quota_row("<default>", consumer_byte_rate=draw.choice((900.0, 20_000.0))),
            ]
            seen.load(QuotaSnapshot.from_rows(rows, second))
        rates = {
            (broker, user, client_id): {
                "produced_bytes": draw.choice((0, 700, 9_000)),
                "fetched_bytes": draw.choice((0, 3_000)),
                "network_time_ns": draw.choice((0, 10**8)),
                "request_count": 2,
            }
            for broker in "12"
            for user, client_id in (("alice", "a"), ("alice", "b"), ("bob", ""), ("carol", "c"))
            if draw.random() < 0.6
        }
        seen.add(second_of(rates, second))
        seen.settle(T0_MS + (second + 2) * 1_000)
    figures = seen.figures()
    held, owed_ms, types = (column.tolist() for column in (figures.held_seconds, figures.owed_ms, figures.owed_type))
    return [(*held, *owed_ms, *types)]


Run = tuple[Callable[[Path, int], list[Answer]], int]
RUNS: list[Run] = [*((of_history, seed) for seed in range(10)), *((of_job, seed) for seed in range(6))]
RUNS += [*((of_shadow, seed) for seed in range(4)), *((of_candidate, seed) for seed in (0, 1, 3))]
LONG = {*((of_job, seed) for seed in (0, 1, 2, 4, 5)), (of_candidate, 1), (of_candidate, 3)}
RECORDED: list[list[Answer]] = [
    [(33, 115795, 2992500, 2034817600), (20, 61738, 2455500, 3101703042)],
    [(47, 211168, 5554500, 287619406), (43, 192168, 5554500, 1626033994)],
    [(80, 230703, 5194500, 2357213088), (69, 209697, 4725000, 3541884578)],
    [(20, 93128, 1216500, 2199914858), (29, 101065, 1924000, 1271133854)],
    [(101, 288780, 6393000, 472522472), (93, 288780, 6393000, 694639133)],
    [(65, 264095, 4083000, 1356415630), (53, 223479, 3772000, 4024490266)],
    [(12, 38961, 811500, 1866724832), (18, 74067, 1550500, 909508383)],
    [(10, 56704, 939000, 2562799647), (11, 68668, 939500, 1201995774)],
    [(32, 72431, 2110500, 4176833540), (33, 81031, 2621000, 4167969972)],
    [(19, 121640, 3446000, 2124235733), (20, 121640, 3446000, 4260664086)],
    [(226, 212931, 8583225, 790012363), (125, 84400, 4308403, 3918593535), (250, 966, 0)],
    [(218, 194304, 8456788, 2220416890), (131, 139104, 5107735, 1162365090), (250, 751, 0)],
    [(236, 152480, 8388034, 144151145), (138, 91304, 4863661, 3874284595), (249, 1026, 0)],
    [(254, 269882, 8416435, 1650813935), (149, 205682, 4462595, 240784026), (250, 1159, 0)],
    [(262, 187225, 9197996, 170091871), (156, 114625, 5789955, 25991473), (250, 992, 0)],
    [(283, 235066, 9110511, 309584441), (167, 161966, 4870949, 803006475), (250, 1309, 0)],
    [(212, 212, 99, 101, 26800, 26800, 9001, 12334, 0, 0, 1, 1)],
    [(257, 136, 257, 148, 45801, 5668, 45801, 5668, 0, 1, 0, 1)],
    [(236, 90, 75, 236, 47200, 9001, 22334, 47200, 0, 1, 1, 0)],
    [(240, 130, 240, 132, 37200, 5668, 37200, 5668, 0, 1, 0, 1)],
    [(223, 208180, 7902319, 1815102074), (115, 74400, 4032705, 3128079884), (0, 0, 0, 223132457)],
    [(299, 262004, 10311589, 1438409345), (177, 174004, 5927596, 4137077649), (0, 0, 0, 223132457)],
    [(291, 339000, 9930458, 3653319001), (168, 262200, 5463114, 3249986676), (0, 0, 0, 223132457)],
]


@pytest.mark.parametrize(
    ("answers", "seed", "recorded"),
    [
        pytest.param(*one, known, marks=[pytest.mark.long] * (one in LONG), id=f"{one[0].__name__}-{one[1]}")
        for one, known in zip(RUNS, RECORDED, strict=True)
    ],
)
def test_a_recorded_run_gives_the_answers_it_gave(
    answers: Callable[[Path, int], list[Answer]], seed: int, recorded: list[Answer], tmp_path: Path
) -> None:
    assert answers(tmp_path, seed) == recorded
