"""The page of the comparison: losses are told, and what is wrong has no speed."""

from pathlib import Path
from typing import Any

import pytest

from bench.peers.report import markdown, ratios_to_streams, write_page
from bench.peers.roster import KQUOTA, PEERS, STREAMS
from bench.peers.stages import OVERLOADS, Stage, Store, measured, simulated


def caught(*rates: float, verdict: str = "right") -> dict[str, Any]:
    times = {"ready_seconds": 4.25, "first_result_seconds": 6.0}
    return {**times, "rates": list(rates), "memory_mb": 812.3, "verdict": verdict}


def steady(answered: int, verdict: str = "right") -> dict[str, Any]:
    latency_ms = [float(number) for number in range(1, answered + 1)]
    told = {"probe_count": 100, "latency_ms": latency_ms, "recovery_seconds": 7.04, "memory_mb": 900.0}
    return {**told, "verdict": verdict}


QUOTAS = {
    "native": {"1": {str(k): 1.01 for k in OVERLOADS}, "2": {str(k): min(k, 2.0) for k in OVERLOADS}},
    "kquota": {str(k): 1.0 for k in OVERLOADS},
    "slowed_ms": [2.0, 3.0, 4.0],
    "told_ms": [300.0, 400.0, 500.0],
}
LOSS = "1 missing, 0 unexpected, 0 wrong; (1000, 'alice', 'etl') must be (1,); got nothing"


def test_a_loss_is_told_with_its_ratio() -> None:
    runs = {
        f"catch-up {KQUOTA} object": caught(100e3, 210e3, 190e3, 200e3),
        f"catch-up {STREAMS} object": caught(90e3, 240e3, 250e3, 260e3),
    }
    assert ratios_to_streams(runs, "object") == pytest.approx((200 / 250, 100 / 90))
    text = markdown(runs, "2 cores", "A million events.")
    assert "| kquota | right | 200 | 100 | 4.2 | 6.0 | 812 |" in text
    assert "kquota ÷ Kafka Streams = 0.80 warm, 1.11 cold; the target is 1.5, warm: **not met**." in text
    assert "arrays" not in text  # not measured, so nothing is said


@pytest.mark.parametrize(("ours", "met"), [(399e3, "**not met**"), (400e3, "met")])
def test_the_target_of_arrays_is_four_times(ours: float, met: str) -> None:
    runs = {f"catch-up {KQUOTA} array": caught(1.0, ours), f"catch-up {STREAMS} array": caught(1.0, 100e3)}
    assert f"the target is 4, warm: {met}." in markdown(runs, "", "")


def test_a_peer_with_one_wrong_sum_has_no_speed_and_the_sum_is_named() -> None:
    runs = {
        f"catch-up {KQUOTA} object": caught(1e5, 2e5),
        f"catch-up {STREAMS} object": caught(5e5, 6e5, verdict=LOSS),
        f"steady {STREAMS}": steady(100, LOSS),
    }
    text = markdown(runs, "", "")
    assert "| Kafka Streams | **wrong** |  |  |  |  |  |" in text
    assert "600" not in text
    assert ratios_to_streams(runs, "object") is None
    assert f"* catch-up Kafka Streams object: wrong sums: {LOSS}" in text
    assert f"* steady Kafka Streams: wrong sums: {LOSS}" in text


def test_what_could_not_run_says_why() -> None:
    text = markdown({"steady Flink SQL": {"failure": "no JDK (javac)\nmore"}}, "", "")
    assert "| Flink SQL | not measured |" in text
    assert "* steady Flink SQL: no JDK (javac)" in text
    assert "more" not in text


def test_a_peer_that_falls_behind_has_no_percentiles() -> None:
    text = markdown({f"steady {STREAMS}": steady(89), "steady Flink SQL": steady(90)}, "", "")
    assert "| Kafka Streams | right | falls behind: 89 of 100 probes answered |  | 7.0 | 900 |" in text
    assert "| Flink SQL | right | 46 | 89 | 7.0 | 900 |" in text


def test_each_process_of_a_peer_is_listed_with_memory_and_cores() -> None:
    processes = [{"name": "python", "memory_mb": 299.6, "cores": 0.2}, {"name": "java", "memory_mb": 701, "cores": 0.4}]
    text = markdown({f"steady {KQUOTA}": {**steady(100), "processes": processes}}, "", "")
    assert "| kquota | python | 300 | 0.20 |\n| kquota | java | 701 | 0.40 |" in text
    assert "Each process" not in markdown({f"steady {KQUOTA}": steady(100)}, "", "")


def test_a_page_gets_tables_and_plots_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "peers.md"
    page.write_text("before\n<!-- peers: written by `python -m bench peers` -->\nold\n<!-- peers end -->\nafter\n")
    runs = {f"steady {peer.name}": steady(100) for peer in PEERS if peer.is_durable} | {"quotas": QUOTAS}
    write_page(page, markdown(runs, "2 cores", "Little."), runs)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| the broker's quota, two brokers | 1.20 | 1.50 | 2.00 | 2.00 | 2.00 | 2.00 | 2.00 |" in text
    assert f"| kquota, any number of brokers (simulated) |{' 1.00 |' * len(OVERLOADS)}\n" in text
    assert "| the broker has muted the client | 3.0 | 4.0 |" in text
    for picture in ("peers-latency.svg", "peers-quotas.svg"):
        assert f"({picture})" in text
        assert (tmp_path / picture).read_text().startswith("<svg")


def test_the_loads_that_are_simulated_are_those_of_the_table() -> None:
    assert tuple(simulated(hours=0.001)) == OVERLOADS


def test_a_run_that_was_broken_off_goes_on_with_the_next_stage(tmp_path: Path) -> None:
    ran: list[str] = []

    def stage(name: str) -> Stage:
        def run() -> dict[str, Any]:
            ran.append(name)
            return {"verdict": "right"}

        return Stage(name, {"events": 1}, run)

    store, stages = Store(tmp_path, "abc"), [stage("one"), stage("two")]
    next(measured(stages, store, "", afresh=False))
    assert ran == ["one"]
    assert dict(measured(stages, store, "", afresh=False)) == {"one": {"verdict": "right"}, "two": {"verdict": "right"}}
    assert ran == ["one", "two"]
    list(measured(stages, store, "two", afresh=True))
    assert ran == ["one", "two", "two"]


def test_a_stage_that_failed_is_tried_again(tmp_path: Path) -> None:
    answers = iter([{"failure": "no JDK (javac)"}, {"verdict": "right"}])
    store, stages = Store(tmp_path, "abc"), [Stage("one", {}, lambda: next(answers))]
    assert dict(measured(stages, store, "", afresh=False)) == {"one": {"failure": "no JDK (javac)"}}
    assert dict(measured(stages, store, "", afresh=False)) == {"one": {"verdict": "right"}}
