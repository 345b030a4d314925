"""Six stock clients of one broker while a quota is raised and cut in the Delta table: what the broker makes of it."""

import pytest

from pipeline.jvm.java import find_jdk
from tests.integration.six_clients import JAVA, PHASES, PYTHON, SixRun, measure

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1200)]

NEAR = 0.15
JUDGED = [number for number, phase in enumerate(PHASES) if phase.is_bounded]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SixRun:
    return measure(tmp_path_factory.mktemp("six"))


@pytest.mark.parametrize("phase", JUDGED, ids=[PHASES[number].name for number in JUDGED])
@pytest.mark.parametrize("offender", [PYTHON, JAVA])
def test_the_broker_holds_a_stock_client_at_its_quota(run: SixRun, offender: str, phase: int) -> None:
    if offender == JAVA and find_jdk() is None:
        pytest.skip("no JDK: a Java source must be compiled")
    assert run.judged(offender, phase) == pytest.approx(1, abs=NEAR), run.tens(offender, phase)


def test_only_the_offenders_are_told_to_wait(run: SixRun) -> None:
    assert all(offender.throttle_max_ms > 0 for offender in run.offenders.values())
    assert run.quiet_throttle_max_ms == 0
    assert all(run.quiet_answer_ms)
