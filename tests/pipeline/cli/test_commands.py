"""What holds for every command: its formats, where its tables are, what it loads, what it says about trouble."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

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
from tests.pipeline.tables.event_table import EventTable
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


@cache
def run(command: str, output: str, root: str) -> Answer:
    """The answer of a command; none of them changes what another one shows."""
    candidate = str(Path(root) / "candidate.yaml")
    rest = [candidate if word == "CANDIDATE" else word for word in COMMANDS[command]]
    tables = [] if command.startswith(WITHOUT_TABLES) else ["--tables", root]
    answer = kquota(*command.split(), *rest, "-o", output, *tables)
    assert answer.exit_code == 0, answer.stderr
    return answer


@pytest.mark.parametrize("command", COMMANDS)
def test_a_table_fits_80_columns_and_the_other_formats_have_everything(command: str, root: str) -> None:
    narrow, wide = run(command, "table", root), run(command, "wide", root)
    lines = narrow.stdout.splitlines()
    if command == "what-if":
        lines.pop()  # a sentence
    assert len(lines) > 1
    assert [line for line in lines if cell_len(line) > 80] == []
    assert "-o wide" not in wide.stderr
    left_out = re.search(r"no room for: (.*); see them", narrow.stderr)
    for name in left_out[1].split(", ") if left_out else ():
        assert name in wide.stdout.replace(" ", "_"), "the hint tells where it is"
    assert json.loads(run(command, "json", root).stdout)


READING = {command: rest for command, rest in COMMANDS.items() if not command.startswith((*WITHOUT_TABLES, "tables"))}
MORE = {
    "quotas export": (),
    "status": (),
    f"throttles explain {USER} {CLIENT}": (),
    f"throttles explain {USER} {CLIENT} -o json": (),
    "throttles list -o json": (),
    "throttles verify": SPAN,
}
OF_NOW = ("status", "throttles list", "throttles explain")
"""They show how long ago something was."""


@pytest.fixture(scope="module")
def stored(root: str, store: ObjectStore) -> str:
    """The same tables in a store."""
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


# An added column is a commit in the history.
ASKED = [
    *(("stored", command) for command in (*READING, *MORE)),
    *(("touched", command) for command in (*READING, *MORE) if command != "quotas history"),
]


@pytest.mark.parametrize(("place", "command"), ASKED)
def test_the_answer_is_that_of_the_same_tables_on_a_disk(
    place: str, command: str, root: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = request.getfixturevalue(place)
    if place == "stored":
        for name, value in request.getfixturevalue("store").environment.items():
            monkeypatch.setenv(name, value)
    candidate = str(Path(root) / "candidate.yaml")
    rest = [candidate if word == "CANDIDATE" else word for word in {**READING, **MORE}[command]]
    on_disk, found = (kquota(*command.split(), *rest, "--tables", tables) for tables in (root, other))
    assert found.exit_code == on_disk.exit_code, found.stderr
    shown = [answer.stdout.replace(other, root) for answer in (found, on_disk)]
    assert shown[0]
    if command.startswith(OF_NOW):
        shown = [re.sub(r"\d+", "#", text) for text in shown]
    if (place, command) == ("stored", "status"):  # a lock shows whether the job has ended; a store has none
        shown = [text.partition("\n")[2] for text in shown]
    assert shown[0] == shown[1]


def test_an_edit_is_a_commit_in_the_store(stored: str, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    edit = ("quotas", "alter", "--user", "eve", "--add-config", "producer_byte_rate=5", "--reason", "try")
    assert kquota(*edit, "--tables", stored).exit_code == 0
    assert "eve" in kquota("quotas", "describe", "--tables", stored).stdout
    assert not list((store.folder / BUCKET / "commands").glob("*.lock"))


QUOTAS_FILE = '{"quotas": []}'
# Each command, and the first table it needs.
IN_A_FOLDER = (
    ("quotas", "mode"),
    ("quotas", "mode", "shadow", "--reason", "incident 7"),
    ("quotas", "quotas", "describe"),
    ("quotas", "quotas", "alter", "--user", "alice", "--add-config", "producer_byte_rate=1"),
    ("quotas", "quotas", "alter", "--user", "alice", "--add-config", "producer_byte_rate=1", "--dry-run"),
    ("quotas", "quotas", "delete", "--user", "alice"),
    ("quotas", "quotas", "export"),
    ("quotas", "quotas", "apply", "-f", "quotas.json"),
    ("quotas", "quotas", "history"),
    ("quotas", "quotas", "diff"),
    ("quotas", "quotas", "at", "-1s"),
    ("quotas", "quotas", "rollback", "0"),
    ("quotas", "quotas", "effective", "alice"),
    ("quotas", "quotas", "sql", "DELETE FROM quotas"),
    ("quotas", "quotas", "sync", "--bootstrap-server", "127.0.0.1:1"),
    ("quotas", "quotas", "sync", "--dry-run", "--bootstrap-server", "127.0.0.1:1"),
    ("quotas", "what-if", "--quotas", "quotas.json"),
    ("throttle_events", "throttles", "list"),
    ("throttle_events", "throttles", "list", "--all"),
    ("throttle_events", "throttles", "explain", "alice", "etl"),
    ("quotas", "throttles", "verify"),
)


@pytest.fixture
def wrong_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, with a quota file for the commands that need one."""
    folder = tmp_path / "wrong folder"
    folder.mkdir()
    (folder / "quotas.json").write_text(QUOTAS_FILE)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("command", IN_A_FOLDER, ids=lambda command: " ".join(command[1:3]))
def test_a_command_in_the_wrong_folder_names_the_table_it_misses_and_creates_nothing(
    command: tuple[str, ...], wrong_folder: Path
) -> None:
    table, *arguments = command
    answer = kquota(*arguments)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"kquota: no Delta table at {wrong_folder}/.kquota/tables/{table}. Fix: ")
    assert f"kquota tables create --tables '{wrong_folder}/.kquota/tables'" in answer.stderr
    assert [path.name for path in wrong_folder.iterdir()] == ["quotas.json"]


def test_doctor_in_the_wrong_folder_reports_errors_and_creates_nothing(wrong_folder: Path) -> None:
    answer = kquota("doctor")
    assert answer.exit_code == 1
    assert f"ERROR tables    no Delta table at {wrong_folder}/.kquota/tables/quotas" in answer.stdout
    assert [path.name for path in wrong_folder.iterdir()] == ["quotas.json"]


def test_tables_create_makes_all_tables_once_and_names_them(tmp_path: Path) -> None:
    root = tmp_path / "new"
    first, second = (json.loads(kquota("tables", "create", "--tables", str(root), "-o", "json").stdout) for _ in "12")
    assert [row["result"] for row in first] == ["created"] * len(TABLES)
    assert [row["result"] for row in second] == ["exists"] * len(TABLES)
    assert [row["address"] for row in first] == [str(root / name) for name in TABLES]
    assert kquota("quotas", "alter", "--user", "a", "--add-config", "mode=exempt", "--tables", str(root)).exit_code == 0


def test_mode_says_which_table_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert kquota("tables", "create").exit_code == 0
    table = tmp_path / ".kquota" / "tables" / "quotas"
    changed = kquota("mode", "shadow")
    assert (changed.stdout, changed.stderr) == ("shadow\n", f"quotas v2 of {table}\n")
    shown = json.loads(kquota("mode", "-o", "json").stdout)
    assert shown == {"mode": "shadow", "version": 2, "table": str(table)}


NOT_FOR_HELP = (
    *("pyspark", "delta", "py4j", "kafka", "pandas"),
    *("starlette", "hypercorn", "deltalake", "pyarrow", "numpy"),
)
# Several commands one after the other, in one interpreter: what none of them has loaded, no single one loads.
PROGRAM = """
import contextlib, io, json, sys
from pipeline.cli.main import exit_code
answers = []
for arguments in json.loads(sys.stdin.read()):
    sys.argv = ["kquota", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = exit_code()
    answers.append([code, printed.getvalue(), sorted(sys.modules)])
print(json.dumps(answers))
"""


def test_the_version_is_that_of_the_distribution() -> None:
    answer = kquota("--version")
    assert (answer.exit_code, answer.stdout) == (0, f"kquota {version('kafka-quota-pipeline')}\n")


def loaded_by(*commands: str) -> Iterator[tuple[str, set[str]]]:
    """Of each command: itself, and the modules that it and those before it have loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([command.split() for command in commands]),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    for command, (code, printed, modules) in zip(commands, json.loads(done.stdout), strict=True):
        assert code == 0, done.stderr
        assert printed
        yield command, set(modules)


def test_help_loads_no_library_of_tables_or_clusters() -> None:
    pages = ("--version", "--help", "quotas --help", "mode --help", "quotas alter --help", "throttles list --help")
    for command, loaded in loaded_by(*pages):
        assert loaded.intersection(NOT_FOR_HELP) == set(), command


# An import of a module that is None in sys.modules fails as that of one which is not installed.
WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = sys.modules["delta"] = sys.modules["py4j"] = None
from pipeline.cli.main import exit_code
for command in ("run --bootstrap-server 127.0.0.1:1", "demo", "quotas sql SELECT"):
    sys.argv = ["kquota", *command.split()]
    print(exit_code())
"""


def test_a_command_that_needs_spark_names_the_extra_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = [sys.executable, "-c", WITHOUT_SPARK]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
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


def test_a_remedy_does_not_name_the_tables_of_another_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    new_tables(".kquota/tables")
    other = new_tables(tmp_path / "other")
    assert other in kquota("quotas", "delete", "--user", "nobody", "--tables", other).stderr
    assert "KQUOTA" not in kquota("quotas", "delete", "--user", "nobody").stderr


def test_what_is_wrong_in_client_properties_is_told_with_the_name_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=127.0.0.1:1\nsecurity.protocol=NOPE\n")
    answer = kquota("topics", "check", "--command-config", str(file))
    assert answer.exit_code == 2
    assert answer.stderr.startswith(f"kquota: {file}: 'security.protocol' 'NOPE' is none of ")


def test_an_unexpected_failure_is_one_line_with_its_class_and_its_stack_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise IsADirectoryError(21, "Is a directory")

    edit = ("quotas", "alter", "--user", "a", "--add-config", "producer_byte_rate=1", "--tables", new_tables(tmp_path))
    monkeypatch.setattr(QuotaTable, "lock", fail)
    answer = kquota(*edit)
    assert answer.exit_code == 1
    assert answer.stderr.startswith("kquota: IsADirectoryError: ")
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
        "quotas sql nothing",
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
    assert answer.stderr.startswith("kquota: unknown format -o xml; use ")
    assert list(tmp_path.iterdir()) == []


INSTANT_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("given", "instant_ms"),
    [
        ("0s", INSTANT_MS),
        ("90s", INSTANT_MS - 90_000),
        ("30m", INSTANT_MS - 1_800_000),
        ("2h", INSTANT_MS - 7_200_000),
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
