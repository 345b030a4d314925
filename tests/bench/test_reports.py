"""`python -m bench --report`: pages that the benchmarks write themselves."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import __main__ as bench


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Benchmarks print their names instead of measuring; gives the names of those that ran."""
    names: list[str] = []

    def run(name: str, options: Sequence[str]) -> tuple[int, str]:
        names.append(" ".join([name, *options]))
        return (1 if name == "held" else 0), f"figures of {name}\n"

    monkeypatch.setattr(bench, "REPORTS", tmp_path / "bench")
    monkeypatch.setattr(bench, "_run", run)
    monkeypatch.setattr(bench, "commit_now", lambda: "abc1234")
    return names


def test_a_report_is_what_the_benchmark_printed(ran: list[str]) -> None:
    assert bench.main(["--report", "edit"]) == 0
    assert ran == ["edit"]
    assert (bench.REPORTS / "edit.md").read_text() == (
        "# edit\n\nFrom a quota edit to the release on the topic, without traffic.\n\n"
        "Written by `python -m bench --report edit` at commit abc1234.\n\n```text\nfigures of edit\n```\n"
    )


def test_options_go_to_the_benchmark_and_into_its_report(ran: list[str]) -> None:
    assert bench.main(["--report", "probe", "--", "--minutes", "3"]) == 0
    assert ran == ["probe --minutes 3"]
    written = (bench.REPORTS / "probe.md").read_text()
    assert "Written by `python -m bench --report probe -- --minutes 3` at commit abc1234." in written
    assert bench.main(["edit", "--"]) == 0


def test_nothing_is_written_unasked_or_of_a_benchmark_that_failed(ran: list[str]) -> None:
    assert bench.main(["edit"]) == 0
    assert bench.main(["--report", "held"]) == 1
    assert ran == ["edit", "held"]
    assert not bench.REPORTS.exists() or not list(bench.REPORTS.iterdir())


def test_an_unknown_name_is_refused_before_anything_runs(ran: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["edit", "speed"]) == 2
    assert ran == []
    assert "unknown: speed. The benchmarks are:" in capsys.readouterr().err
