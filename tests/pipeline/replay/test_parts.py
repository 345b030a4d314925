"""A range that is read in slices gives what it gives in one piece."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline.replay.request import ReplayRequest, Timeline, slice_length_ms
from pipeline.replay.usage_batches import Source
from pipeline.replay.what_if import run
from pipeline.settings.model import EngineSettings, Settings
from tests.pipeline.replay.conftest import EDITS, TRIGGER_MS
from tests.pipeline.replay.kept import KeptJob


def facts(request: ReplayRequest, slice_ms: int) -> list[object]:
    """All there is of its replays, to be compared."""
    results = run(request, lambda done, whole: None, slice_ms)
    return [(one.outcomes, one.evaluations, one.rows) for one in results]


@pytest.mark.parametrize("source", ["usage_by_second", "usage"])
@settings(max_examples=3, phases=(Phase.explicit, Phase.reuse, Phase.generate))  # it shrinks to nothing smaller
@given(
    slice_ms=st.integers(2_500, 90_000),
    ago_ms=st.integers(200_000, 1_000_000),
    length_ms=st.integers(20_000, 120_000),
    num_samples=st.sampled_from([2, 4]),
)
def test_a_range_in_any_slices_comes_to_what_one_slice_comes_to(
    source: Source, kept: KeptJob, slice_ms: int, ago_ms: int, length_ms: int, num_samples: int
) -> None:
    begun_ms, since_ms = kept.clock.wall_ms - 300 * TRIGGER_MS, kept.clock.wall_ms - ago_ms
    snapshots = tuple(kept.quotas.at(version) for version in range(2, 3 + len(EDITS)))
    live = Timeline(tuple(begun_ms + 40 * TRIGGER_MS * place for place in range(len(snapshots))), snapshots)
    engine = Settings(engine=EngineSettings(num_samples=num_samples))
    timelines = live, Timeline((0,), snapshots[:1])
    request = ReplayRequest(kept.root, source, "cluster", engine, since_ms, since_ms + length_ms, timelines)
    assert facts(request, slice_ms) == facts(request, 10**9)


@pytest.mark.parametrize(
    ("hours", "clients", "longest_ms"),
    [(24, 1_000, 1_200_000), (24, 10, 3_600_000), (1, 1_000, 180_000), (1, 100_000, 60_000)],
)
def test_slices_are_as_long_as_memory_and_a_progress_bar_allow(hours: int, clients: int, longest_ms: int) -> None:
    assert slice_length_ms(hours * 3_600_000, hours * 3_600 * clients) == pytest.approx(longest_ms, rel=0.01)
