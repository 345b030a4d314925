"""`kquota observe`: its live view, and what it refuses before it connects."""

from pathlib import Path

import pytest

from pipeline.cli.observe import Progress, view
from pipeline.observe.observation import Line, Sensor
from pipeline.observe.sources import SourceState
from tests.pipeline.cli.running import kquota

PROGRESS = Progress(
    now_ms=1_700_000_000_000,
    observed_ms=42_000,
    span_ms=600_000,
    states=[SourceState("broker 1", ""), SourceState("broker 2 at http://b:1/m", "no answer within 10 s")],
    quotas=4,
    quota_trouble="",
    has_no_sensors=False,
)


ALICE = Line(Sensor(0, "alice", "", 3, 1e6), {"1": 9e5, "2": 9e5})


BOB = Line(Sensor(1, "bob", "ui", 1, 1e6), {"1": 850_000.0})


CAROL = Line(Sensor(2, "carol", "x", 0, None), {"1": 12.0})


def shown(*lines: Line, progress: Progress = PROGRESS, width: int = 120, height: int = 40) -> list[str]:
    return [text for _, text in view(progress, lines, width, height)]


@pytest.mark.parametrize(("height", "rows"), [(40, 30), (14, 10), (5, 1), (1, 1)])
def test_a_view_has_no_more_lines_than_there_is_room_for(height: int, rows: int) -> None:
    lines = [Line(Sensor(0, f"u{number}", "", 3, 1e6), {"1": 1.0}) for number in range(30)]
    found = shown(*lines, height=height)
    assert sum("/*" in text for text in found) == rows
    assert (found[-1] == f"and {30 - rows} more, further from their bounds") == (rows < 30)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give one source of usage"),
        (("--targets", "http://a:1/m", "--usage-topic", "t"), "give one source of usage"),
        (("--targets", "ftp://a"), "is not an address of metrics"),
        (("--targets", "http://a:1/m,http://a:1/m"), "two targets have the same address"),
        (("--usage-topic", "t", "--json", "/no/such/folder/found.json"), "there is no folder"),
        (("--usage-topic", "t"), "'kafka.bootstrap_servers', is not set"),
    ],
)
def test_options_that_can_not_be_used_are_refused(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    server = () if "not set" in said else ("--bootstrap-server", "127.0.0.1:1")
    answer = kquota("observe", *words, *server)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert said in answer.stderr


def test_the_view_has_progress_trouble_and_each_client_over_all_brokers() -> None:
    first, trouble, _, alice, bob, carol = shown(ALICE, BOB, CAROL)
    assert first == "22:13:20 UTC  observed 42 s, 9 min 18 s left · 1 of 2 brokers answer · 4 native quotas"
    assert trouble == "broker 2 at http://b:1/m: no answer within 10 s"
    assert alice.split() == [
        "alice/*",
        "producer",
        "████████",
        "180",
        "%",
        "1.8",
        "of",
        "1.0",
        "MB/s",
        "1:",
        "0.9,",
        "2:",
        "0.9",
    ]
    assert bob.split() == ["bob/ui", "consumer", "██████▊", "85", "%", "0.8", "of", "1.0", "MB/s", "1:", "0.8"]
    assert carol.split() == ["carol/x", "request", "12.0", "%,", "no", "quota", "1:", "12.0"]
    styles = [style for style, _ in view(PROGRESS, [ALICE, BOB, CAROL], 120, 40)]
    assert styles[3:] == ["bold red", "yellow", ""]
    unread = PROGRESS._replace(states=[SourceState("broker 1", "", "x{a}: why")])
    assert shown(progress=unread)[1] == "broker 1: some of its quota lines cannot be read: x{a}: why"
    evil = Line(Sensor(0, "a\x1b[2J", "", 3, 1e6), {"1\n": 1.0})
    assert all(text.isprintable() for text in shown(evil)), "names of clients cannot move the cursor"
    assert len(shown()) > 2, "before the first usage the view is there"
