"""What a command loads, in a process of its own: commands that only read must not wait for what they do not use."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version

import pytest

from pipeline.tables.quotas.edit import QuotaChange
from quota.entity import QUOTA_TYPES
from tests.pipeline.cli.running import kquota
from tests.pipeline.replay.kept import KeptJob
from tests.pipeline.tables.event_table import EventTable
from tests.quota.factories import usage_row
from tests.waiting import PATIENCE_SECONDS

NEVER = ("pyspark", "py4j", "delta", "pandas", "kafka", "starlette", "uvicorn", "pyarrow.dataset", "rich.console")
# What reads a few rows needs no columns of numbers, no lock, no row model of another table, and its settings no library
# that also knows cloud stores.
QUICK = (
    *NEVER,
    *("numpy", "pyarrow", "asyncio", "ssl", "pydantic_settings", "filelock", "schemas.usage"),
)
JVM_AND_KAFKA = ("pyspark", "delta", "py4j", "kafka")
NOT_FOR_HELP = (*JVM_AND_KAFKA, "pandas", "starlette", "uvicorn", "deltalake", "pyarrow", "numpy")

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


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Tables with a decision on alice/etl, its usage, and a throttle that runs for a day."""
    root = tmp_path_factory.mktemp("tables")
    job = KeptJob(str(root), QuotaChange("alice", "", {"producer_byte_rate": 1_000.0}))
    (decision,) = job.batch([usage_row(job.clock.wall_ms, user="alice", client_id="etl", produced_bytes=50_000)])
    job.flush()
    events = EventTable(root, epoch=2)  # that of the job is 1
    now_ms = time.time_ns() // 1_000_000
    identity = {"user": "alice", "decision_id": decision["decision_id"], "quota_type": QUOTA_TYPES[0]}
    events.write(("etl", "throttle", now_ms, 86_400_000), **identity, observed=5e3, bound=1e3)
    return str(root)


def run(*commands: str, rest: Sequence[str] = ()) -> Iterator[tuple[str, str, set[str]]]:
    """Of each command: itself, what it prints, and the modules that it and those before it have loaded."""
    arguments = [[*command.split(), *rest] for command in commands]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    for command, (code, printed, modules) in zip(commands, json.loads(done.stdout), strict=True):
        assert code == (1 if command == "status" else 0), done.stderr  # no job runs here
        yield command, printed, set(modules)


def test_help_loads_no_library_of_tables_or_clusters() -> None:
    for command, text, loaded in run(
        "--version", "--help", "quotas --help", "mode --help", "quotas alter --help", "throttles list --help"
    ):
        assert text
        assert loaded.intersection(NOT_FOR_HELP) == set(), command


def test_the_version_is_that_of_the_distribution() -> None:
    answer = kquota("--version")
    assert (answer.exit_code, answer.stdout) == (0, f"kquota {version('kafka-quota-pipeline')}\n")


def test_a_command_that_reads_loads_what_it_uses_and_an_edit_no_jvm_or_kafka_client(root: str) -> None:
    unwanted = {
        "throttles explain alice etl": QUICK,
        "quotas describe": QUICK,
        "throttles list": QUICK,
        "throttles list --all": QUICK,
        "quotas describe -o json": QUICK,
        "status": QUICK,
        "mode": QUICK,
        "quotas at 0s": QUICK,
        "quotas history": (*JVM_AND_KAFKA, "pandas", "pyarrow.dataset"),
        "quotas alter --user carol --add-config producer_byte_rate=1": JVM_AND_KAFKA,
    }
    for command, text, loaded in run(*unwanted, rest=("--tables", root)):
        assert text
        assert loaded.intersection(unwanted[command]) == set(), command
