"""The oracle of the peers, their results, and the proof page."""

from typing import Any

import pytest
from kafka.record import MemoryRecords

from bench import proof
from bench.peers.life import CaughtUp, Steady
from bench.peers.messages import SHAPES, Backlog, Shape, difference, sums_of
from bench.peers.report import markdown
from bench.probe import Probed

START_MS = 1_763_712_000_000
PARTITIONS = 4
ALICE = (1_000, "alice", "etl")
BOB = (2_000, "bob", "")
RIGHT = {ALICE: (11, 22, 33, 44, 3), BOB: (5, 0, 0, 0, 1)}


@pytest.mark.parametrize(
    ("got", "told"),
    [
        (RIGHT, ""),
        (RIGHT | {BOB: (5, 0, 0, 0, 2)}, f"1 wrong, as {BOB}: (5, 0, 0, 0, 2), not (5, 0, 0, 0, 1)"),
        ({ALICE: RIGHT[ALICE]}, f"1 missing, as {BOB}: (5, 0, 0, 0, 1)"),
        (RIGHT | {(3_000, "eve", ""): (1, 0, 0, 0, 1)}, "1 unexpected, as (3000, 'eve', ''): (1, 0, 0, 0, 1)"),
    ],
)
def test_one_wrong_missing_or_unexpected_sum_is_found(
    got: dict[tuple[int, str, str], tuple[int, ...]], told: str
) -> None:
    assert difference(RIGHT, got) == told


LOSS = "3 missing, as x"


def test_wrong_sums_have_no_figures_and_no_ratio() -> None:
    runs: dict[str, Any] = {
        "catch-up kquota object": CaughtUp(4.25, 6.0, 1e5, 2e5, 812.3, ""),
        "catch-up Kafka Streams object": CaughtUp(4.25, 6.0, 5e5, 6e5, 812.3, LOSS),
        "steady Kafka Streams": Steady(100, [float(number) for number in range(1, 101)], 7.04, 900.0, 0.5, LOSS),
        "probe": Probed([60.0, 80.0], 800.0, 0.7, [0.0, 1.0]),
    }
    text = markdown(runs, "")
    assert "| Kafka Streams | **wrong** |  |  |  |  |  |" in text
    assert "600" not in text
    assert "÷ Kafka Streams" not in text
    assert f"* catch-up Kafka Streams object: wrong sums: {LOSS}" in text
    assert f"* steady Kafka Streams: wrong sums: {LOSS}" in text


def test_the_claims_of_the_pages_are_those_that_the_command_writes() -> None:
    parts = {proof.PAGE: proof.page_table(), proof.README: proof.readme_table()}
    for page, text in parts.items():
        written = page.read_text("utf-8").partition(proof.MARKS[0])[2].partition(proof.MARKS[1])[0]
        assert written.strip() == text, "python -m bench --proof"
    assert proof.readme_table().count("](docs/") == 4


@pytest.fixture(scope="module")
def small() -> Backlog:
    return Backlog.build(2_050, clients=40, start_ms=START_MS, partitions=PARTITIONS)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("copy", [0, 2])
def test_each_copy_of_a_backlog_gives_the_expected_sums_in_each_shape(small: Backlog, shape: Shape, copy: int) -> None:
    values = []
    for batch in small.batches[shape]:
        records: Any = MemoryRecords(batch.shifted(copy * small.span_ms))
        while (one := records.next_batch()) is not None:
            assert one.validate_crc()
            values += [record.value for record in one]
    assert difference(small.expected(copy), sums_of(values)) == ""
    assert sum(batch.event_count for batch in small.batches[shape]) == small.event_count == 2_050
