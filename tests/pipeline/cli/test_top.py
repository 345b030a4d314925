"""`kquota top`: what a state looks like as time goes on, and the command in a pipe, in a terminal and as JSON."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from pipeline.cli.top import bar, follow, view
from pipeline.errors import PipelineError
from pipeline.tables.quotas.edit import QuotaChange
from tests.pipeline.cli.running import kquota
from tests.pipeline.cli.top_states import NOON_MS, line, state
from tests.pipeline.replay.kept import KeptJob
from tests.pipeline.tables.event_table import EventTable
from tests.quota.factories import usage_row
from tests.waiting import PATIENCE_SECONDS

COMMAND = [sys.executable, "-m", "pipeline.cli.main", "top"]
HELD: dict[str, Any] = {"throttled_clients": 1, "throttled_until_ms": NOON_MS + 9_300, "decision_id": "7f3a01cc52"}


def texts(*args: Any, **kwargs: Any) -> list[str]:
    return [text for _, text in view(*args, **kwargs)]


def test_a_state_is_who_is_throttled_how_near_everybody_is_and_how_old_that_is() -> None:
    lines = line("alice", 212_000.0, **HELD), line("bob", 96_000.0), line("carol", 50.0, owner="")
    assert texts(state(*lines, throttled=1), NOON_MS, 100) == [
        "12:00:00 UTC  kquota up · batch 812, 0.4 s ago · quotas v3 enforce",
        "1 throttled, 8 clients with usage: produced 1.2 MB/s, fetched 0.0 B/s, 3.1 %",
        "client     type      used            rate                 held   until       owner  decision",
        "alice/etl  producer  ████████ 212 %  212.0 of 100.0 kB/s  9.3 s  12:00:09.3  data   7f3a01cc",
        "bob/etl    producer  ███████▋ 96 %   96.0 of 100.0 kB/s                      data",
        "carol/etl  producer  ▏        0 %    0.1 of 100.0 kB/s",
    ]


def test_a_throttle_counts_down_to_nothing_and_the_batch_ages() -> None:
    shown = state(line("alice", 212_000.0, **HELD))
    assert " 0.3 s " in texts(shown, NOON_MS + 9_000, 100)[-1]
    later = texts(shown, NOON_MS + 12_000, 100)
    assert " 0.0 s " in later[-1]
    assert "batch 812, 12.4 s ago" in later[0]
    assert later[2] == "STALLED: no micro-batch for 12 s; the job has not yet looked for usage: it starts, or hangs"


@pytest.mark.parametrize(
    ("waited_ms", "process", "expected"),
    [
        (
            -9_900,
            "4711",
            "IDLE: no micro-batch for 12 s; the job waits, and no client has used anything (looked 2 s ago)",
        ),
        (
            -8_900,
            "4711",
            "STALLED: no micro-batch for 12 s; the job last looked for usage 3 s ago: a batch takes long, or it hangs",
        ),
        (9_000, "4711", "HUNG: no micro-batch for 12 s; process 4711 last looked for usage 21 s ago"),
        (300, None, "STALLED: no micro-batch for 12 s; no job runs on this machine"),
    ],
)
def test_a_cluster_without_usage_is_told_from_a_job_that_hangs(
    waited_ms: int, process: str | None, expected: str
) -> None:
    shown = state(line("alice", 212_000.0))
    object.__setattr__(shown, "status", replace(shown.status, last_wait_age_ms=waited_ms, process=process))
    assert " ".join(texts(shown, NOON_MS + 12_000, 100)[2:-2]) == expected
    assert texts(shown, NOON_MS, 100)[2].split()[0] == "client", "a new batch says that all is well"


def test_a_state_that_can_not_be_read_anew_says_why() -> None:
    assert texts(state(), NOON_MS, 80, trouble="disk\nfull")[2] == r"not readable: disk\nfull"


@pytest.mark.parametrize("width", [20, 60, 80, 100, 200])
def test_every_line_fits_also_with_names_of_any_length(width: int) -> None:
    long = line("夜間バッチ" * 20, 9.9e9, 1e3, **HELD, client_id="\x1b[2J" * 30, owner="team-of-the-warehouse" * 3)
    object.__setattr__(long, "throttled_clients", 12_345)
    shown = texts(state(long), NOON_MS, width)
    assert max(map(cell_len, shown)) <= width
    assert all(text.isprintable() for text in shown)


def test_at_80_columns_client_bar_rate_countdown_and_owner_have_room() -> None:
    header = texts(state(line("service-of-the-data-team", 212_000.0, **HELD)), NOON_MS, 80)[2]
    assert header.split() == ["client", "type", "used", "rate", "held", "owner"]


def test_what_does_not_fit_the_terminal_or_is_not_wanted_is_counted() -> None:
    shown = state(*(line(f"u{number}", 1.0) for number in range(30)))
    by_height = texts(shown, NOON_MS, 80, height=10)
    assert (len(by_height), by_height[-1]) == (10, "and 24 more, further from their bounds")
    assert texts(shown, NOON_MS, 80, limit=29)[-1] == "and 1 more, further from their bounds"
    assert "more" not in texts(shown, NOON_MS, 80)[-1]


@pytest.mark.parametrize(
    ("used", "shown"),
    [(0.0, ""), (1e-9, "▏"), (0.5, "████"), (0.999, "███████▉"), (1.0, "████████"), (30.0, "████████")],
)
def test_a_bar_is_full_at_the_bound_and_never_empty_above_nothing(used: float, shown: str) -> None:
    assert bar(used) == shown.ljust(8)


def test_it_is_drawn_more_often_than_read_and_trouble_is_shown_with_the_last_state() -> None:
    answers: list[Any] = ["first", PipelineError("away", "wait"), "second"]
    shown: list[Any] = []

    def read() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, PipelineError):
            raise answer
        return answer

    follow(read, lambda one, trouble: shown.append((one, trouble)), lambda _: len(shown) == 5, 1.0, 0.5)
    away = ("first", "away. Fix: wait")
    assert shown == [("first", None), ("first", None), away, away, ("second", None)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Alice is throttled for a day; bob uses half of his bound."""
    path = tmp_path_factory.mktemp("tables")
    quotas = QuotaChange("alice", "", {"producer_byte_rate": 1e3}), QuotaChange("bob", "", {"producer_byte_rate": 1e4})
    job = KeptJob(str(path), *quotas)
    job.batch(
        [usage_row(job.clock.wall_ms, user=name, client_id="etl", produced_bytes=50_000) for name in ("alice", "bob")]
    )
    job.flush()
    about = {"user": "alice", "sensor_user": "alice", "quota_type": "producer_byte_rate", "decision_id": "0123456789ab"}
    now_ms = time.time_ns() // 1_000_000
    EventTable(path, epoch=2).write(("etl", "throttle", now_ms, 86_400_000), **about, bound=1e3)  # that of the job is 1
    return str(path)


def test_once_prints_the_state_and_ends(root: str) -> None:
    answer = kquota("top", "--once", "--tables", root)
    assert (answer.exit_code, answer.stderr) == (0, "")
    *_, stalled, header, alice, bob = answer.stdout.splitlines()
    assert stalled.startswith("STALLED: no micro-batch for ")
    assert header.split()[0] == "client"
    assert alice.startswith("alice/*  producer  ████████ 500 %  5.0 of 1.0 kB/s ")
    assert bob.startswith("bob/*    producer  ████     50 %   5.0 of 10.0 kB/s")


def test_programs_get_one_document_with_all_figures(root: str) -> None:
    document = json.loads(kquota("top", "--once", "-o", "json", "--tables", root).stdout)
    assert [(one["user"], one["used"], one["throttled_clients"]) for one in document["lines"]] == [
        ("alice", 5.0, 1),
        ("bob", 0.5, 0),
    ]
    assert document["activity"] == "down"
    assert (document["is_stalled"], document["totals"]["clients"], document["status"]["held_clients"]) == (True, 2, 1)
    assert len(json.loads(kquota("top", "--once", "--limit", "1", "-o", "json", "--tables", root).stdout)["lines"]) == 1


def test_a_document_of_what_goes_on_is_refused(root: str) -> None:
    answer = kquota("top", "-o", "json", "--tables", root)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert "Fix: write --once -o json" in answer.stderr


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_in_a_pipe_it_prints_again_and_again_and_ends_with_0_when_told(root: str, kind: signal.Signals) -> None:
    command = [*COMMAND, "--every", "100", "--tables", root]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        headers = 0
        while headers < 2:
            headers += process.stdout.readline().startswith("client ")
        process.send_signal(kind)
        _, told = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, told) == (0, "")


def test_a_reader_that_has_gone_ends_it_without_a_complaint(root: str) -> None:
    command = [*COMMAND, "--every", "100", "--tables", root]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE_SECONDS) == 0
        assert process.stderr.read() == ""


def test_on_a_terminal_it_draws_on_a_screen_of_its_own_and_gives_the_old_one_back(root: str) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    command = [*COMMAND, "--tables", root]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        drawn = b""
        while b"alice/*" not in drawn:
            drawn += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        drawn += _rest(ours)
        assert process.wait(PATIENCE_SECONDS) == 0
    os.close(ours)
    enter, leave, show_cursor = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"
    assert drawn.index(enter) < drawn.index(b"alice/*") < drawn.index(leave)
    assert show_cursor in drawn
    assert b"Traceback" not in drawn


def _rest(terminal: int) -> bytes:
    """All that is still written to a terminal until its last writer has gone."""
    found = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # Linux's way to say that nobody is left
            return found
        if not part:
            return found
        found += part


def test_missing_tables_are_named_as_everywhere(tmp_path: Path) -> None:
    assert kquota("top", "--once", "--tables", str(tmp_path)).exit_code == 2
