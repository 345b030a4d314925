"""All sessions that were recorded from Kafka are played, and random ones beside Kafka's own classes."""

from collections.abc import Iterator

import pytest

from bench.conformance import RECORDED_SESSIONS, main, read_sessions
from pipeline.jvm.jars import fetch
from pipeline.jvm.java import LOWEST_VERSION, find_jdk
from tests.compatibility.kafka_jars import kafka_jars
from tests.conformance.kafka_judge import KafkaJudge, judge
from tests.conformance.random_sessions import draw_session


def test_the_engine_answers_all_recorded_sessions_as_kafka_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(RECORDED_SESSIONS)]) == 0
    assert capsys.readouterr().out.endswith("\n4338 records, 0 mismatches\n")


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaJudge]:
    jdk = find_jdk()
    if jdk is None:
        pytest.skip(f"no judge: needs a JDK of version {LOWEST_VERSION} or newer in JAVA_HOME or on PATH")
    fetch()
    with KafkaJudge(jdk) as running:
        yield running


@pytest.mark.broker
def test_kafka_answers_the_recorded_sessions_as_it_did_when_they_were_recorded(kafka: KafkaJudge) -> None:
    recorded = list(read_sessions(RECORDED_SESSIONS))
    assert [kafka.answer(session) for session in recorded] == recorded


@pytest.mark.broker
@pytest.mark.long
def test_kafka_4_3_answers_as_4_4_but_for_throttle_times_above_an_int(kafka: KafkaJudge) -> None:
    jdk = find_jdk()
    assert jdk is not None
    with KafkaJudge(jdk, kafka_jars("4.3")) as older:
        for session in (*read_sessions(RECORDED_SESSIONS), *map(draw_session, range(200))):
            for before, now in zip(older.answer(session)["steps"], kafka.answer(session)["steps"], strict=True):
                has_wrapped = now.get("throttle_time_ms") == 2**31 - 1
                assert before == (now | {"throttle_time_ms": before["throttle_time_ms"]} if has_wrapped else now)


@pytest.mark.broker
@pytest.mark.parametrize("sessions", [40, pytest.param(2_000, marks=pytest.mark.long)])
def test_the_engine_answers_random_sessions_as_kafka_does(kafka: KafkaJudge, sessions: int) -> None:
    records, mismatches, minimal = judge(kafka, first_seed=0, sessions=sessions)
    assert minimal is None, f"{mismatches[0]}; cut down:\n{minimal}"
    assert records > 10 * sessions
