"""A range cut anywhere comes to what it comes to in one piece: on this machine, in processes, and on Spark."""

import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline.replay.local_run import in_order, run
from pipeline.replay.outcome import ReplayResult
from pipeline.replay.request import Plan, slice_length_ms
from pipeline.replay.slice_replay import Held, carried_into, decide, held_by, lengthen
from pipeline.replay.usage_batches import Source
from pipeline.tables.layout import table_uri
from tests.pipeline.replay.histories import T0_MS, History, in_one_piece

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Seeds do not shrink to anything smaller.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
SOURCES: tuple[Source, ...] = ("usage_by_second", "usage")


def unheard(done: int, whole: int) -> None:
    del done, whole


def facts(results: list[ReplayResult]) -> list[object]:
    """All there is of them, to be compared."""
    return [(one.outcomes, one.throttle_ms_by_bin.tolist(), one.evaluations, one.rows) for one in results]


@pytest.mark.parametrize("source", SOURCES)
@settings(max_examples=15, phases=PHASES)
@given(seed=st.integers(0, 10**9), slice_ms=st.integers(2_500, 90_000), window_ms=st.sampled_from([1_000, 3_000]))
def test_slices_of_any_length_come_to_what_one_run_comes_to(
    source: Source, seed: int, slice_ms: int, window_ms: int
) -> None:
    with tempfile.TemporaryDirectory() as root:
        request = History(Random(seed), source, window_ms).write(root)
        plan = Plan.of(request, slice_ms)
        found = in_order(plan, (decide(plan.request, part) for part in plan.slices), unheard)
        assert facts(found) == facts(in_one_piece(request))


@pytest.mark.parametrize("source", SOURCES)
def test_these_histories_have_all_that_is_hard_to_cut(source: Source, tmp_path: Path) -> None:
    held_on = brief = empty = edited = 0
    for seed in range(5):
        request = History(Random(seed), source, 1_000).write(str(tmp_path / str(seed)))
        plan = Plan.of(request, 5_000)
        decided = [decide(plan.request, part) for part in plan.slices]
        held: list[Held] = [{}, {}]
        for part, one in zip(plan.slices, decided, strict=True):
            held_on += any(carried_into(request, part, held))
            lengthen(held, held_by(request, one))
        empty += any(not len(one.at_ms) for one in decided)
        brief += sum("carol" in {user for _, user, _ in one.clients} for one in decided) in {1, 2}
        edited += len(request.quotas[0].snapshots) > 1
    assert min(held_on, brief, empty, edited) > 0


def test_windows_of_a_slice_are_all_its_own(tmp_path: Path) -> None:
    request = replace(History(Random(1), "usage_by_second", 3_000).write(str(tmp_path)), since_ms=T0_MS + 1)
    slices = Plan.of(request, 1).slices
    assert slices[0].start_ms == request.begin_ms
    assert [part.start_ms for part in slices[1:]] == [part.end_ms for part in slices[:-1]]
    assert {part.end_ms % 3_000 for part in slices[:-1]} == {0}
    assert slices[-1].end_ms == request.until_ms


@pytest.mark.parametrize(
    ("hours", "clients", "longest_ms"),
    [(24, 1_000, 1_200_000), (24, 10, 3_600_000), (1, 1_000, 451_500), (1, 100_000, 60_000)],
)
def test_slices_are_as_long_as_memory_allows_and_as_many_as_cores_need(
    hours: int, clients: int, longest_ms: int
) -> None:
    assert slice_length_ms(hours * 3_600_000, hours * 3_600 * clients) == pytest.approx(longest_ms, rel=0.01)


def test_a_pool_comes_to_the_same(tmp_path: Path) -> None:
    request = History(Random(3), "usage_by_second", 1_000).write(str(tmp_path))
    plan = Plan.of(request, 20_000)
    found, ran_on = run(plan, unheard, worth_ms=0)
    assert facts(found) == facts(in_one_piece(request))
    assert ran_on.endswith("processes")


def test_a_table_that_grows_meanwhile_is_read_as_it_was(tmp_path: Path) -> None:
    request = History(Random(4), "usage", 1_000).write(str(tmp_path))
    plan, whole = Plan.of(request), facts(in_one_piece(request))
    uri = table_uri(str(tmp_path), "usage")
    write_deltalake(uri, DeltaTable(uri).to_pyarrow_table(), mode="append")
    assert facts(run(plan, unheard)[0]) == whole


@pytest.mark.spark
@pytest.mark.parametrize("source", SOURCES)
def test_spark_comes_to_the_same(source: Source, spark: "SparkSession", tmp_path: Path) -> None:
    from pipeline.replay.spark_run import run_on_spark  # noqa: PLC0415 - loads pyspark

    request = History(Random(5), source, 1_000).write(str(tmp_path))
    plan = Plan.of(request, 7_000)
    found, ran_on = run_on_spark(plan, spark)
    assert facts(found) == facts(in_one_piece(request))
    assert ran_on == f"Spark {spark.version} at local[*], {len(plan.slices)} tasks"
