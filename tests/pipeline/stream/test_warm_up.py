"""The warm-up ends when somebody waits for the session."""

from threading import Event

import pytest
from pyspark.sql import SparkSession

from pipeline.stream.session import JOB_GROUP, warm_up
from tests.pipeline.stream.messages import RULES

pytestmark = pytest.mark.spark


class WantedLater(Event):
    """Set once it has been asked for so many times."""

    def __init__(self, questions: int) -> None:
        super().__init__()
        self.left = questions

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize(("questions", "runs_a_plan"), [(0, False), (1, False), (2, True)])
def test_plans_are_run_only_while_nobody_needs_spark(spark: SparkSession, questions: int, runs_a_plan: bool) -> None:
    tracker, wanted = spark.sparkContext.statusTracker(), WantedLater(questions)
    before = set(tracker.getJobIdsForGroup(JOB_GROUP))
    warm_up(spark, RULES, wanted)
    assert bool(set(tracker.getJobIdsForGroup(JOB_GROUP)) - before) == runs_a_plan
    assert wanted.left == -1


def test_all_runs_are_made_if_nobody_comes(spark: SparkSession) -> None:
    wanted = WantedLater(100)
    warm_up(spark, RULES, wanted)
    assert wanted.left == 97
