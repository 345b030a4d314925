"""A range that is read in slices gives what it gives in one piece."""

import tempfile
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline.replay.request import ReplayRequest, slice_length_ms, warm_up_ms
from pipeline.replay.usage_batches import ReplayResult, Source
from pipeline.replay.what_if import run
from pipeline.settings.model import EngineSettings
from pipeline.tables.port import table_uri
from quota.errors import InvalidUsage
from tests.pipeline.replay.histories import History

# Seeds do not shrink to anything smaller.
WHOLE_MS = 10**9
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
SOURCES: tuple[Source, ...] = ("usage_by_second", "usage")


def unheard(done: int, whole: int) -> None:
    del done, whole


def facts(results: list[ReplayResult]) -> list[object]:
    """All there is of them, to be compared."""
    return [(one.outcomes, one.evaluations, one.rows) for one in results]


def replayed(request: ReplayRequest, slice_ms: int) -> list[ReplayResult]:
    return run(request, unheard, slice_ms)


@pytest.mark.parametrize("source", SOURCES)
@settings(max_examples=5, phases=PHASES)
@given(
    seed=st.integers(0, 10**9),
    slice_ms=st.integers(2_500, 90_000),
    window_ms=st.sampled_from([1_000, 3_000]),
    shares=st.booleans(),
)
def test_a_range_in_any_slices_comes_to_what_one_slice_comes_to(
    source: Source, seed: int, slice_ms: int, window_ms: int, shares: bool
) -> None:
    with tempfile.TemporaryDirectory() as root:
        request = History(Random(seed), source, window_ms, shares).write(root)
        assert facts(replayed(request, slice_ms)) == facts(replayed(request, WHOLE_MS))


@pytest.mark.parametrize("source", SOURCES)
def test_these_histories_have_all_that_is_hard_to_divide(source: Source, tmp_path: Path) -> None:
    edited = held = 0
    for seed in range(4):
        request = History(Random(seed), source, 1_000, seed % 2 == 0).write(str(tmp_path / str(seed)))
        edited += len(request.quotas[0].snapshots) > 1
        held += any(outcome.throttle_ms > 5_000 for outcome in replayed(request, 5_000)[0].outcomes.values())
    assert min(edited, held) > 0


def test_the_warm_up_reaches_back_far_enough_for_rates_and_for_debts() -> None:
    settings = EngineSettings()
    assert warm_up_ms(settings) > settings.rate_span_ms
    # A client at 1.2 times its quota fills the largest debt, ten bursts below a full bucket, in this time.
    burst_ms = settings.num_samples * settings.sample_window_ms
    assert warm_up_ms(settings) >= 11 * burst_ms / (1.2 - 1) - 1


@pytest.mark.parametrize(
    ("hours", "clients", "longest_ms"),
    [(24, 1_000, 1_200_000), (24, 10, 3_600_000), (1, 1_000, 180_000), (1, 100_000, 60_000)],
)
def test_slices_are_as_long_as_memory_and_a_progress_bar_allow(hours: int, clients: int, longest_ms: int) -> None:
    assert slice_length_ms(hours * 3_600_000, hours * 3_600 * clients) == pytest.approx(longest_ms, rel=0.01)


def test_a_stored_row_after_its_own_evaluation_is_refused(tmp_path: Path) -> None:
    request = History(Random(1), "usage", 1_000, False).write(str(tmp_path))
    uri = table_uri(str(tmp_path), "usage")
    rows = DeltaTable(uri).to_pyarrow_table().sort_by("evaluated_at_ms").to_pylist()
    # Later rows of the same slice are evaluated after it.
    row = next(row for row in rows if row["evaluated_at_ms"] < row["sample_start_ms"] + 999)
    row["last_event_ms"] = row["evaluated_at_ms"] + 1
    schema = DeltaTable(uri).to_pyarrow_table().schema
    write_deltalake(uri, pa.Table.from_pylist(rows, schema), mode="overwrite")
    with pytest.raises(InvalidUsage, match=f"is after the evaluation at {row['evaluated_at_ms']}$"):
        replayed(request, WHOLE_MS)
