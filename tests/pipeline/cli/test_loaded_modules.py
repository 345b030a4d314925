"""What a command loads, in a process of its own: commands that only read must not wait for what they do not use.

The time itself is measured by `python -m bench cli`.
"""

import json
import subprocess
import sys
import time

import pytest

from pipeline.tables.quotas.edit import QuotaChange
from quota.entity import QUOTA_TYPES
from tests.pipeline.replay.kept import KeptJob
from tests.pipeline.tables.event_table import EventTable
from tests.quota.factories import usage_row
from tests.waiting import PATIENCE_SECONDS

NEVER = ("pyspark", "py4j", "delta", "pandas", "kafka", "starlette", "uvicorn", "pyarrow.dataset", "rich.console")
NOT_FOR_HELP = ("pyspark", "py4j", "delta", "pandas", "kafka", "starlette", "uvicorn", "pyarrow", "numpy", "pydantic")

PROGRAM = """
import json, sys
from pipeline.cli.main import exit_code
code = exit_code()
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
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


def run(*arguments: str) -> tuple[str, set[str]]:
    """What a command prints, and the modules it has loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    return done.stdout, set(modules)


@pytest.mark.parametrize("command", ["", "quotas ", "throttles list "])
def test_help_loads_no_library_of_tables_or_clusters(command: str) -> None:
    text, loaded = run(*f"{command}--help".split())
    assert "Usage" in text
    # Typer itself loads pydantic to describe the options of one command.
    assert loaded.intersection(NOT_FOR_HELP) - ({"pydantic"} if command else set()) == set()


@pytest.mark.parametrize(
    "command",
    [
        "throttles list",
        "throttles list --all",
        "throttles explain alice etl",
        "quotas describe",
        "quotas describe -o json",
        "status",
    ],
)
def test_a_command_that_reads_loads_only_what_it_uses(command: str, root: str) -> None:
    text, loaded = run(*command.split(), "--tables", root)
    assert text
    assert loaded.intersection(NEVER) == set()
