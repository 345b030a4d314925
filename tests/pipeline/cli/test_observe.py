"""`kquota observe`: what it prints meanwhile, and what it refuses before it connects."""

import pytest

from pipeline.cli.observe import Progress, document_of, next_steps, print_view
from pipeline.observe.findings import Findings
from pipeline.observe.observation import Line, Sensor
from pipeline.observe.sources import InForce, SourceState
from quota.broker_levels.entries import EntryKey
from quota.snapshot import QuotaSnapshot
from tests.pipeline.cli.running import kquota

PROGRESS = Progress(
    now_ms=1_700_000_000_000,
    observed_ms=42_000,
    span_ms=600_000,
    states=[SourceState("broker 1", ""), SourceState("broker 2 at http://b:1/m", "no answer within 10 s")],
    in_force=InForce(QuotaSnapshot(0, ())),
    has_no_sensors=False,
)
ALICE = Line(Sensor(0, "alice", "", 3, 1e6), {"1": 9e5, "2": 9e5})
BOB = Line(Sensor(1, "bob", "ui", 1, 1e6), {"1": 850_000.0})
CAROL = Line(Sensor(2, "carol", "x", 0, None), {"1": 12.0})
NOW_MS = PROGRESS.now_ms


def shown(capsys: pytest.CaptureFixture[str], *lines: Line, progress: Progress = PROGRESS) -> list[str]:
    print_view(progress, lines)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give one source of usage"),
        (("--targets", "http://a:1/m", "--usage-topic", "t"), "give one source of usage"),
        (("--targets", "ftp://a"), "is not an address of metrics"),
        (("--targets", "http://a:1/m,http://a:1/m"), "two targets have the same address"),
        (("--usage-topic", "t"), "'kafka.bootstrap_servers', is not set"),
    ],
)
def test_options_that_can_not_be_used_are_refused(words: tuple[str, ...], said: str) -> None:
    server = () if "not set" in said else ("--bootstrap-server", "127.0.0.1:1")
    answer = kquota("observe", *words, *server)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert said in answer.stderr


def test_the_view_has_progress_trouble_and_the_most_critical_clients(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    first, trouble, _, alice, bob, carol, _ = shown(capsys, ALICE, BOB, CAROL)
    assert first == "22:13:20 UTC  observed 42 s, 9 min 18 s left · 1 of 2 brokers answer · 0 native quotas"
    assert trouble == "broker 2 at http://b:1/m: no answer within 10 s"
    assert " ".join(alice.split()) == "alice/* producer 180 % 1.8 of 1.0 MB/s 1: 0.9, 2: 0.9"
    assert " ".join(bob.split()) == "bob/ui consumer 85 % 0.8 of 1.0 MB/s 1: 0.8"
    assert carol.split() == ["carol/x", "request", "12.0", "%,", "no", "bound", "1:", "12.0"]
    found = shown(capsys, *(Line(Sensor(0, f"u{number}\x1b[2J", "", 3, 1e6), {"1\n": 1.0}) for number in range(30)))
    assert all(text.isprintable() for text in found), "names of clients cannot move the cursor"
    assert found[-2] == "and 20 more, further from their bounds"
    unread = PROGRESS._replace(states=[SourceState("broker 1", "", "x{a}: why")])
    _, told, *_, nobody, _ = shown(capsys, progress=unread)
    assert told == "broker 1: some of its quota lines cannot be read: x{a}: why"
    assert nobody == "no client has used anything yet"


@pytest.mark.parametrize(
    ("line", "held"),
    [
        (Line(Sensor(0, "alice", "", 3, 1e6, "enforce"), {"": 1e6}, NOW_MS + 1), "by kquota, 1 s more"),
        (
            Line(Sensor(0, "alice", "", 3, 1e6, "enforce"), {"": 1e6}, NOW_MS + 4_000, 0.5),
            "by kquota, 4 s more; its brokers held it up to 30 s of the last minute",
        ),
        (Line(Sensor(0, "alice", "", 3, 1e6, "enforce"), {"": 1e6}, NOW_MS - 1), ""),
        (Line(Sensor(0, "alice", "", 3, 1e6, "shadow"), {"": 1e6}, None, 0.5), "shadow mode"),
    ],
)
def test_with_the_rates_of_a_job_the_view_says_who_holds_a_client(
    line: Line, held: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    _, _, heading, found, _ = shown(capsys, line, progress=PROGRESS._replace(is_of_job=True))
    assert heading.split() == ["client", "type", "used", "rate", "held"]
    assert " ".join(found.split()) == f"alice/* producer 100 % 1.0 of 1.0 MB/s {held}".rstrip()


def test_a_job_s_rates_of_each_broker_name_it(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [Line(Sensor(0, "alice", "", 3, 1e6, "enforce"), {broker: 9e5}) for broker in ("1", "2")]
    lines.append(Line(Sensor(0, "vip", "x", 0, None, "exempt"), {"": 1e6}))
    _, _, heading, *found, _ = shown(capsys, *lines, progress=PROGRESS._replace(is_of_job=True))
    assert heading.split()[-2:] == ["brokers", "held"]
    assert [line.split()[-1] for line in found] == ["0.9", "0.9", "exempt"]
    assert [line.split()[-2] for line in found[:2]] == ["1:", "2:"]


def test_a_managed_cluster_gets_no_command_that_changes_it() -> None:
    for is_of_job, first in ((True, "throttles list"), (False, "status")):
        commands = [command for _, command in next_steps("b:9092", is_managed=True, is_of_job=is_of_job)]
        assert [first in commands[0], "describe -o wide" in commands[1], len(commands)] == [True, True, 2]
    assert "mode shadow" in str(next_steps("b:9092"))


def test_the_document_has_quotas_and_the_values_of_others_as_data() -> None:
    others = {EntryKey("bob", "", "consumer_byte_rate"): 7e6}
    in_force = InForce(QuotaSnapshot(7, ()), root="tables", foreign=others)
    found = Findings(0, 0, None, None, [], [], [])
    documents = [
        document_of(found, PROGRESS._replace(in_force=one, is_of_job=one.root is not None), "b:9092")
        for one in (in_force, PROGRESS.in_force)
    ]
    value = {"user": "bob", "client_id": "", "quota_type": "consumer_byte_rate", "value": 7e6}
    assert [one["quotas"] for one in documents] == [
        {"version": 7, "of_job": True, "foreign": [value]},
        {"version": None, "of_job": False, "foreign": []},
    ]
