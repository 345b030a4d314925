"""What the reports have in common: ranges, pages, and what they say when there is nothing."""

from pathlib import Path

import pytest

from tests.pipeline.cli.running import Answer, kquota
from tests.pipeline.reports.minutes_kept import KeptMinutes

EVIL = "<img src=x onerror=alert(1)>"
COMMANDS = (("chargeback",), ("slo", "--target", "1m"), ("rightsizing",))


@pytest.fixture
def kept(tmp_path: Path) -> KeptMinutes:
    kept = KeptMinutes.create(tmp_path)
    kept.quota(EVIL, producer_byte_rate=1_000.0, owner=EVIL)
    kept.use(*((minute, EVIL, EVIL) for minute in (0, 1, 2, 60, 61)), produced_bytes=120_000)
    kept.hold((1, EVIL, EVIL, 30_000), owner=EVIL)
    return kept


def report(kept: KeptMinutes, *words: str) -> Answer:
    return kquota("report", *words, "--tables", kept.root)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_it_says_which_range_has_usage_and_what_of_the_range_asked_for_has_none(
    kept: KeptMinutes, command: tuple[str, ...]
) -> None:
    answer = report(kept, *command, "--since", "2026-11-22T23:00:00", "--until", "2026-11-23T03:00:00")
    assert answer.exit_code == 0, answer.stderr
    told = "usage from 2026-11-23T00:00:00 to 2026-11-23T01:02:00 UTC; it begins 1 h after --since and ends 1 h 58 min"
    assert f"{told} before --until\n" in answer.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_range_without_usage_exits_with_3_and_says_what_is_kept(kept: KeptMinutes, command: tuple[str, ...]) -> None:
    answer = report(kept, *command, "--since", "2026-11-25", "--until", "2026-11-26")
    assert (answer.exit_code, answer.stdout) == (3, "")
    assert "usage_by_minute has 2026-11-23T00:00:00 to 2026-11-23T01:02:00 UTC" in answer.stderr
    empty = kquota("report", *command, "--tables", KeptMinutes.create(Path(kept.root)).root)
    assert (empty.exit_code, "usage_by_minute is empty" in empty.stderr) == (3, True)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_page_stands_alone_with_names_as_text_and_gaps_as_gaps(
    kept: KeptMinutes, command: tuple[str, ...], tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    answer = report(kept, *command, "--since", "2026-11-23", "--until", "2026-11-24", "--html", str(page))
    assert answer.stderr.endswith(f"written: {page}\n")
    html = page.read_text(encoding="utf-8")
    assert "<img" not in html
    assert "&lt;img src=x onerror=alert(1)&gt;" in html
    assert "http" not in html
    assert "<td>2026-11-23 00:00 UTC</td>" in html
    assert "1795392000000" not in html
    if command[0] != "rightsizing":
        lines = 2 if command[0] == "chargeback" else 1
        assert html.count("<polyline") == 2 * lines, "a line before the gap and one after"


@pytest.mark.parametrize("option", ["--html", "--candidate"])
def test_a_file_that_can_not_be_written_is_refused_before_anything_is_read(option: str, tmp_path: Path) -> None:
    answer = kquota("report", "rightsizing", option, str(tmp_path / "no" / "file"), "--tables", str(tmp_path))
    assert answer.exit_code == 2
    assert f"of {option} cannot be written: there is no folder" in answer.stderr


def test_clients_without_owner_are_counted_with_a_way_to_name_one(kept: KeptMinutes) -> None:
    kept.use((5, "carol", "a"), (5, "carol", "b"), produced_bytes=1)
    answer = report(kept, "chargeback", "--since", "2026-11-23", "--until", "2026-11-24")
    assert "2026-11  no owner" in answer.stdout
    told = "clients without owner: 2; see them with --clients, and which quotas could name one: "
    assert told in answer.stderr
    assert answer.stderr.endswith("quotas effective carol a\n")
