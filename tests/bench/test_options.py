"""The options of a benchmark are made of their defaults."""

from pathlib import Path

import pytest

from bench.machine import arguments, memory_of, tree


def test_an_option_has_the_type_of_its_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["bench", "--rounds", "3", "--seconds", "1", "--loads", "1:2", "3:4", "--triggers", "--no-report"]
    monkeypatch.setattr("sys.argv", given)
    asked = arguments(
        "about", rounds=1, seconds=2.0, loads=["9:9"], triggers=[5], no_report=False, quick=False, page=""
    )
    assert (asked.rounds, asked.seconds, asked.loads, asked.triggers) == (3, 1.0, ["1:2", "3:4"], [])
    assert (asked.no_report, asked.quick, asked.page) == (True, False, "")
    assert "cores" in capsys.readouterr().out, "the machine comes first"


def test_a_process_is_the_first_of_its_tree_and_one_that_has_ended_holds_nothing() -> None:
    own = int(Path("/proc/self").resolve().name)
    assert tree(own)[0] == own
    assert memory_of(own)["VmHWM"] > 1
    assert memory_of(2**22 + 1) == {}
