"""What a job needs: the measured figures at the measured points, lines between them."""

import json
import re
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.reports.sizing import PATH, Measured, Point, read_measured, shards_for, size_of
from tests.pipeline.cli.running import kquota


def point(entities: int, events_per_second: int, figure: float) -> Point:
    return Point(entities, events_per_second, figure, figure, figure, figure, figure)


MEASURED = Measured("a machine", (point(10, 100, 100), point(20, 100, 200), point(120, 100, 400), point(20, 300, 600)))


@pytest.mark.parametrize(
    ("entities", "events_per_second", "figure", "is_measured"),
    [
        (10, 100, 100, True),
        (20, 100, 200, True),
        (120, 100, 400, True),
        (20, 300, 600, True),
        (1, 100, 100, True),
        (15, 100, 150, True),
        (70, 100, 300, True),
        (70, 200, 500, True),
        (120, 301, 802, False),
        (170, 100, 500, False),
        (10, 0, 0, True),
    ],
)
def test_the_figures_are_lines_through_the_points(
    entities: int, events_per_second: int, figure: float, is_measured: bool
) -> None:
    size = size_of(entities, events_per_second, MEASURED)
    assert (size.batch_ms, size.driver_mb, size.jvm_mb, size.cores, size.back_s) == pytest.approx((figure,) * 5)
    assert size.is_measured == is_measured


@pytest.mark.parametrize(
    ("figures", "expected"),
    [((300, 200, 400), (300, 300, 305, 400, 450)), ((100, 200, 150), (100, 200, 200, 200, 200))],
)
def test_more_entities_never_need_less_however_the_runs_differ(
    figures: tuple[int, int, int], expected: tuple[int, ...]
) -> None:
    points = (point(entities, 100, figure) for entities, figure in zip((10, 20, 120), figures, strict=True))
    measured = Measured("a machine", (*points, point(20, 300, 600)))
    assert tuple(size_of(entities, 100, measured).cores for entities in (1, 20, 25, 120, 170)) == expected


@pytest.mark.parametrize(("entities", "trigger_ms"), [(10, 250), (15, 250), (20, 300), (120, 600)])
def test_the_trigger_has_room_for_slow_batches(entities: int, trigger_ms: int) -> None:
    assert size_of(entities, 100, MEASURED).trigger_ms == trigger_ms


def test_the_figures_that_come_with_kquota_are_in_the_order_that_is_relied_on() -> None:
    assert PATH.exists()
    *few_events, most_events = read_measured().points
    entities = [each.entities for each in few_events]
    assert entities == sorted(set(entities))
    assert len({each.events_per_second for each in few_events}) == 1
    assert most_events.entities in entities
    assert most_events.events_per_second > few_events[0].events_per_second


def test_the_figures_that_come_with_kquota_are_those_of_the_page_of_the_benchmark() -> None:
    """`python -m bench --report scale -- --write` writes both."""
    page = (Path(__file__).parents[3] / "docs" / "bench" / "scale.md").read_text("utf-8")
    told = json.loads(PATH.read_text("utf-8"))
    assert told["machine"] in page
    rows = [line.split() for line in page.splitlines() if line[:1] == " " and line.split()[0].isdecimal()]
    assert len(rows) == len(told["points"])
    for row, stored in zip(rows, told["points"], strict=True):
        figures = [stored["batch_ms"], stored["longest_batch_ms"], stored["driver_mb"], stored["jvm_mb"]]
        assert row[:2] == [str(stored["entities"]), str(stored["events_per_second"])]
        assert row[6:12] == [f"{figure:.1f}" for figure in (*figures, stored["cores"], stored["back_s"])]


@pytest.mark.parametrize(
    ("entities", "events_per_second", "shards"),
    [(120, 100, 1), (670, 100, 1), (671, 100, 2), (1_340, 100, 2), (1_341, 100, 3), (670 * 64, 100, 64)],
)
def test_users_are_divided_until_one_driver_is_enough_for_its_entities(
    entities: int, events_per_second: int, shards: int
) -> None:
    """A figure of 1 500 is that of 670 entities: the last line goes on."""
    assert shards_for(entities, events_per_second, MEASURED) == shards


@pytest.mark.parametrize(
    ("entities", "events_per_second", "told"),
    [
        (670 * 64 + 1, 100, "no driver holds 42881 entities, even with 64 shards, the most that can be: a micro-batch"),
        (
            10,
            801,
            "no driver holds 801 events per second, also with shards, as each reads all: a micro-batch takes 1502",
        ),
    ],
)
def test_what_no_driver_holds_is_refused(entities: int, events_per_second: int, told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        shards_for(entities, events_per_second, MEASURED)


def test_the_command_says_how_many_shards_there_must_be_and_refuses_what_none_can_hold() -> None:
    answer = kquota("size", "--entities", "10000000")
    assert answer.exit_code == 0
    assert answer.stdout.splitlines()[1].split() == ["jobs", "(setting", "shard)", "2"]
    assert "one driver cannot hold 10000000 clients: 2 jobs share the users, shard = 0/2 to 1/2" in answer.stderr
    refused = kquota("size", "--entities", "10000000000")
    assert (refused.exit_code, refused.stdout) == (2, "")
