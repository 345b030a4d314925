"""What holds for every command: its formats, where its tables are, what it loads, what it says about trouble."""

import json
import re
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import cache
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.cells import cell_len

from pipeline.cli.options import parse_instant
from pipeline.command_line import extra_text
from pipeline.errors import UsageError
from pipeline.tables.layout import TABLES
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable
from quota.entity import QUOTA_TYPES
from tests.object_store import BUCKET, ObjectStore
from tests.pipeline.cli.running import Answer, kquota, new_tables
from tests.pipeline.replay.kept import KeptJob
from tests.pipeline.tables.factories import EventTable
from tests.quota.factories import usage_row
from tests.touched_tables import add_columns
from tests.waiting import PATIENCE_SECONDS

USER = "service-of-the-team-that-loads-the-warehouse-0007"
CLIENT = "夜間バッチ-夜間バッチ-夜間バッチ-nightly-etl"
RATES = dict.fromkeys(QUOTA_TYPES, 1_000.0)
SPAN = ("--since", "2023-11-14T22:00:00", "--until", "2023-11-14T22:20:00")
COMMANDS = {
    "throttles list": (),
    "throttles list --all": (),
    "quotas history": (),
    "quotas diff": ("1", "3"),
    "quotas describe": (),
    "quotas at": ("-0s",),
    f"quotas effective {USER} {CLIENT}": (),
    f"quotas alter --user {USER} --client-id {CLIENT}": ("--add-config", "producer_byte_rate=5", "--dry-run"),
    "quotas rollback 1": ("--dry-run",),
    "what-if": ("-f", "CANDIDATE", *SPAN),
    "tables create": (),
    "config show": (),
}
WITHOUT_TABLES = ("config",)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Tables with two quotas, an edit, some decisions and a running throttle of a client with long names."""
    root = tmp_path_factory.mktemp("tables")
    (root / "candidate.yaml").write_text(
        f"quotas:\n- entity: [{{type: user, name: {USER}}}]\n  values: [{{key: producer_byte_rate, value: '7'}}]\n"
    )
    job = KeptJob(str(root), QuotaChange(USER, CLIENT, RATES), QuotaChange(USER, "", {**RATES, "owner": "dana"}))
    job.batch([usage_row(job.clock.wall_ms, user=USER, client_id=CLIENT, produced_bytes=50_000_000)])
    job.edit(QuotaChange(USER, "", {"producer_byte_rate": 123_456_789.0, "note": "until May, then " + "less " * 30}))
    job.flush()
    about = {"user": USER, "quota_type": QUOTA_TYPES[1], "decision_id": "0123456789abcdef", "cause": "quota_changed"}
    now_ms = time.time_ns() // 1_000_000
    events = EventTable(root, epoch=2)  # that of the job is 1
    events.write((CLIENT, "throttle", now_ms, 86_400_000), **about, observed=123.4e6, bound=999.9e3, window_ms=10_925)
    return str(root)


def candidate_of(root: str) -> str:
    return str(Path(root) / "candidate.yaml")


@cache
def run(command: str, output: str, root: str) -> Answer:
    """The answer of a command; none of them changes what another one shows."""
    rest = [candidate_of(root) if word == "CANDIDATE" else word for word in COMMANDS[command]]
    tables = [] if command.startswith(WITHOUT_TABLES) else ["--tables", root]
    answer = kquota(*command.split(), *rest, "-o", output, *tables)
    assert answer.exit_code == 0, answer.stderr
    return answer


@pytest.mark.parametrize("command", COMMANDS)
def test_a_table_fits_80_columns_and_the_other_formats_have_everything(command: str, root: str) -> None:
    narrow, wide = run(command, "table", root), run(command, "wide", root)
    lines = narrow.stdout.splitlines()
    assert len(lines) > 1
    assert [line for line in lines if cell_len(line) > 80 and "clients throttled" not in line] == []
    assert "-o wide" not in wide.stderr
    left_out = re.search(r"no room for: (.*); see them", narrow.stderr)
    for name in left_out[1].split(", ") if left_out else ():
        assert name in wide.stdout.replace(" ", "_"), "the hint tells where it is"
    assert json.loads(run(command, "json", root).stdout)


READING = {
    **{command: rest for command, rest in COMMANDS.items() if not command.startswith((*WITHOUT_TABLES, "tables"))},
    "quotas export": (),
    "status": (),
    f"throttles explain {USER} {CLIENT}": (),
    "throttles verify": SPAN,
}
OF_NOW = ("status", "throttles list", "throttles explain")
"""They show how long ago something was."""


@pytest.fixture(scope="module")
def stored(root: str, store: ObjectStore) -> str:
    shutil.copytree(root, store.folder / BUCKET / "commands", ignore=shutil.ignore_patterns("*.lock", "*.pid"))
    return "s3://kquota/commands"


@pytest.fixture(scope="module")
def touched(root: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same tables, after others have added columns to all of them."""
    folder = tmp_path_factory.mktemp("touched") / "tables"
    shutil.copytree(root, folder)
    for name in TABLES:
        add_columns(str(folder / name))
    return str(folder)


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("place", ["stored", "touched"])
def test_the_answer_is_that_of_the_same_tables_on_a_disk(
    place: str, command: str, root: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = request.getfixturevalue(place)
    if place == "stored":
        for name, value in request.getfixturevalue("store").environment.items():
            monkeypatch.setenv(name, value)
    rest = [candidate_of(root) if word == "CANDIDATE" else word for word in READING[command]]
    on_disk, found = (kquota(*command.split(), *rest, "--tables", tables) for tables in (root, other))
    assert found.exit_code == on_disk.exit_code, found.stderr
    shown = [answer.stdout.replace(other, root) for answer in (found, on_disk)]
    assert shown[0]
    if command.startswith(OF_NOW):
        shown = [re.sub(r"\d+", "#", text) for text in shown]
    if (place, command) == ("stored", "status"):  # a lock shows whether the job has ended; a store has none
        shown = [text.partition("\n")[2] for text in shown]
    if (place, command) != ("touched", "quotas history"):  # an added column is a commit in it
        assert shown[0] == shown[1]


# The first table that a command needs, and commands.
IN_A_FOLDER = {
    "quotas": (
        "mode",
        "mode shadow",
        "quotas describe",
        "quotas alter --user alice --add-config producer_byte_rate=1",
        "quotas delete --user alice",
        "quotas export",
        "quotas apply -f quotas.json",
        "quotas history",
        "quotas diff",
        "quotas at -1s",
        "quotas rollback 0",
        "quotas effective alice",
        "quotas sql nothing",
        "quotas sync --bootstrap-server 127.0.0.1:1",
        "what-if --quotas quotas.json",
        "throttles verify",
    ),
    "tenants": ("tenants describe",),
    "throttle_events": ("throttles list", "throttles explain alice etl"),
}


@pytest.mark.parametrize(
    ("table", "command"), [(table, command) for table, commands in IN_A_FOLDER.items() for command in commands]
)
def test_a_command_in_the_wrong_folder_names_the_table_it_misses_and_creates_nothing(
    table: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "wrong folder"
    folder.mkdir()
    (folder / "quotas.json").write_text('{"quotas": []}')
    monkeypatch.chdir(folder)
    answer = kquota(*command.split())
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"kquota: no Delta table at {folder}/.kquota/tables/{table}. Fix: ")
    assert f"kquota tables create --tables '{folder}/.kquota/tables'" in answer.stderr
    assert [path.name for path in folder.iterdir()] == ["quotas.json"]


NOT_FOR_HELP = (
    *("pyspark", "delta", "py4j", "kafka", "pandas"),
    *("starlette", "hypercorn", "deltalake", "pyarrow", "numpy"),
)
# Several commands one after the other, in one interpreter: what none of them has loaded, no single one loads.
PROGRAM = """
import json, sys
from pipeline.cli.main import exit_code
for arguments in sys.argv[1:]:
    sys.argv = ["kquota", *arguments.split()]
    assert exit_code() == 0, arguments
print(json.dumps([*sys.modules]), file=sys.stderr)
"""


def test_help_loads_no_library_of_tables_or_clusters() -> None:
    pages = ("--version", "--help", "quotas --help", "mode --help", "quotas alter --help", "throttles list --help")
    program = [sys.executable, "-c", PROGRAM, *pages]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    assert {*json.loads(done.stderr)}.intersection(NOT_FOR_HELP) == set()
    assert done.stdout.startswith(f"kquota {version('kafka-quota-pipeline')}\n")


# An import of a module that is None in sys.modules fails as that of one which is not installed.
WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = sys.modules["delta"] = sys.modules["py4j"] = None
from pipeline.cli.main import exit_code
for command in ("run --bootstrap-server 127.0.0.1:1", "demo", "quotas sql SELECT"):
    sys.argv = ["kquota", *command.split()]
    print(exit_code())
"""


def test_a_command_that_needs_spark_names_the_extra_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = subprocess.run([sys.executable, "-c", WITHOUT_SPARK], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1", "1", "1"]
    told = done.stderr.splitlines()
    assert len(told) == 3
    assert all(line.endswith(f" is not installed. Fix: {extra_text('job')}") for line in told), told


@pytest.mark.parametrize("given_by", ["option", "file"])
def test_a_remedy_finds_the_tables_that_the_command_was_given(given_by: str, tmp_path: Path) -> None:
    root = new_tables(tmp_path / "the tables")
    settings = tmp_path / "my settings.toml"
    settings.write_text(f'[tables]\nroot = "{root}"\n')
    where = ("--tables", root) if given_by == "option" else ("--config", str(settings))
    kquota("quotas", "alter", "--user", "alice", "--add-config", "producer_byte_rate=1", *where)
    refused = kquota("quotas", "delete", "--user", "nobody", *where)
    fix = refused.stderr.strip().partition("see which exist: ")[2]
    assert fix, refused.stderr
    shown = subprocess.run(["/bin/sh", "-c", fix], capture_output=True, text=True, check=False)
    assert (shown.returncode, "alice" in shown.stdout) == (0, True), shown.stderr


def test_an_unexpected_failure_is_one_line_with_its_class_and_its_stack_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QuotaTable, "lock", Mock(side_effect=IsADirectoryError("a\x1b[2J\nb")))
    edit = ("quotas", "alter", "--user", "a", "--add-config", "producer_byte_rate=1", "--tables", new_tables(tmp_path))
    answer = kquota(*edit)
    assert answer.exit_code == 1
    assert answer.stderr.startswith("kquota: IsADirectoryError: a\\x1b[2J. Fix: ")
    assert answer.stderr.count("\n") == 1
    monkeypatch.setenv("KQUOTA_LOG_LEVEL", "DEBUG")
    answer = kquota(*edit)
    assert answer.stderr.startswith("Traceback")
    assert answer.stderr.splitlines()[-1].startswith("kquota: IsADirectoryError: ")


@pytest.mark.parametrize(
    "command",
    [
        "topics create --bootstrap-server 127.0.0.1:1",
        "topics check --acls",
        "tables create",
        "quotas alter --user alice --add-config producer_byte_rate=1",
        "quotas apply -f missing.yaml",
        "throttles verify",
        "throttles tail",
        "what-if -f missing.yaml",
        "mode shadow",
    ],
)
def test_a_command_refuses_another_format_before_it_does_anything(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = kquota(*command.split(), "-o", "xml")
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert "unknown format -o xml" in answer.stderr
    off = kquota("mode", "off")
    assert (off.exit_code, "unknown mode off" in off.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


INSTANT_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("given", "instant_ms"),
    [
        ("0s", INSTANT_MS),
        ("90s", INSTANT_MS - 90_000),
        ("30m", INSTANT_MS - 1_800_000),
        ("7d", INSTANT_MS - 604_800_000),
        ("-2h", INSTANT_MS - 7_200_000),
        ("1w", INSTANT_MS - 604_800_000),
        ("99999999w", 0),
        ("1700000000123", 1_700_000_000_123),
        ("253402300799999", 253_402_300_799_999),
        ("2023-11-14T22:13:20", INSTANT_MS),
        ("2023-11-14T23:13:20+01:00", INSTANT_MS),
        ("2023-11-14", 1_699_920_000_000),
    ],
)
def test_ages_times_and_epoch_milliseconds_are_instants(given: str, instant_ms: int) -> None:
    assert parse_instant("--since", given, INSTANT_MS) == instant_ms


@pytest.mark.parametrize("given", ["", "2 hours", "--2h", "yesterday", "170000", "2023-13-01", "253402300800000"])
def test_anything_else_is_refused_with_the_option_and_the_text(given: str) -> None:
    with pytest.raises(UsageError, match="cannot read --since"):
        parse_instant("--since", given, INSTANT_MS)


def test_the_tables_may_be_given_before_the_command_or_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = new_tables(tmp_path / "tables")
    edit = ("quotas", "alter", "--user", "a", "--add-config", "producer_byte_rate=1000")
    assert kquota("--tables", root, *edit).exit_code == 0
    after = kquota("quotas", "describe", "--tables", root)
    assert kquota("--tables", root, "quotas", "describe") == after
    assert kquota("--tables", "elsewhere", "quotas", "describe", "--tables", root) == after
    (tmp_path / "kquota.toml").write_text(f"[tables]\nroot = {json.dumps(root)}\n")
    monkeypatch.setenv("KQUOTA_CONFIG", str(tmp_path / "none.toml"))
    assert kquota("--config", str(tmp_path / "kquota.toml"), "quotas", "describe") == after
    refused = kquota("--bootstrap-server", "broker:9092", "quotas", "describe", "--tables", root)
    assert (refused.exit_code, "quotas describe has no option --bootstrap-server" in refused.stderr) == (2, True)
    lines = kquota("--bootstrap-server", "broker:9092", "meter", "reporter", "--jar", str(tmp_path)).stdout
    assert "bootstrap.servers=broker:9092" in lines


def test_the_help_has_every_command_in_a_panel() -> None:
    found = kquota("--help").stdout
    assert [panel for panel in ("Look", "Quotas", "Tenants", "Run", "Set up") if f"─ {panel} ─" not in found] == []
    assert "─ Commands ─" not in found


def test_a_watched_list_is_printed_again_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = new_tables(tmp_path / "tables")
    edit = ("quotas", "alter", "--user", "a", "--tables", root, "--add-config")
    changes = iter(["producer_byte_rate=1000", "owner=team", "owner=team", None])

    def wait(_seconds: float) -> bool:
        change = next(changes)
        return change is None or kquota(*edit, change).exit_code != 0

    monkeypatch.setattr("pipeline.cli.options.wait_until_stopped", lambda: nullcontext(wait))
    watched = kquota("quotas", "describe", "--watch", "--tables", root)
    line = "Quota configs for user-principal 'a' are producer_byte_rate=1000.0"
    assert (watched.exit_code, watched.stdout) == (0, f"{line}\n\n{line}, owner=team\n")
    assert watched.stderr.count("quotas v") == 3


def test_names_alone_are_printed_as_other_commands_take_them(tmp_path: Path) -> None:
    root = new_tables(tmp_path / "tables")
    bound = ("--add-config", "producer_byte_rate=1000", "--tables", root)
    for entity in (["--user", "a"], ["--user", "a", "--client-id", "b"], ["--client-id", "b"], ["--user-defaults"]):
        assert kquota("quotas", "alter", *entity, *bound).exit_code == 0
    assert kquota("tenants", "alter", "team-a", "--add-user", "a", *bound).exit_code == 0
    names = kquota("quotas", "describe", "-o", "name", "--tables", root).stdout
    assert sorted(names.splitlines()) == ["/b", "<default>", "a", "a/b"]
    assert kquota("tenants", "describe", "-o", "name", "--tables", root).stdout == "team-a\n"
