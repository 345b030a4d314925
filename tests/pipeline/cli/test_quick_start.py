"""What makes commands slow to start is not loaded by those that do not need it."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.pipeline.cli.running import kquota, new_tables

RUN = """
import sys
from pipeline.cli.main import main
sys.argv = ["kquota", *sys.argv[1:]]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
sys.stderr.write("loaded " + " ".join(sys.modules))
"""
JVM_AND_KAFKA = {"pyspark", "delta", "py4j", "kafka"}
ENGINES = {*JVM_AND_KAFKA, "deltalake", "pyarrow", "numpy", "pandas", "yaml"}


def loaded(*arguments: str) -> set[str]:
    command = [sys.executable, "-c", RUN, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(ran.stderr.rpartition("loaded ")[2].split())


@pytest.mark.parametrize(
    "arguments", [["--help"], ["quotas", "--help"], ["quotas", "alter", "--help"], ["mode", "--help"]]
)
def test_help_loads_no_engine(arguments: list[str]) -> None:
    assert loaded(*arguments) & ENGINES == set()


@pytest.mark.parametrize("arguments", [["quotas", "describe"], ["quotas", "history"], ["quotas", "at", "0s"], ["mode"]])
def test_reading_quotas_loads_neither_jvm_nor_kafka_nor_pandas(arguments: list[str], tmp_path: Path) -> None:
    root = new_tables(tmp_path)
    kquota("quotas", "alter", "--user", "alice", "--add-config", "producer_byte_rate=1", "--tables", root)
    heavy = {*JVM_AND_KAFKA, "pandas", "pyarrow.dataset"}
    assert loaded(*arguments, "--tables", root) & heavy == set()


def test_an_edit_loads_neither_jvm_nor_kafka(tmp_path: Path) -> None:
    edit = (
        "quotas",
        "alter",
        "--user",
        "alice",
        "--add-config",
        "producer_byte_rate=1",
        "--tables",
        new_tables(tmp_path),
    )
    assert loaded(*edit) & JVM_AND_KAFKA == set()


def test_the_status_loads_neither_jvm_nor_kafka_nor_pandas(tmp_path: Path) -> None:
    heavy = {*JVM_AND_KAFKA, "pandas", "pyarrow.dataset"}
    assert loaded("status", "--tables", new_tables(tmp_path)) & heavy == set()


def test_the_version_is_that_of_the_distribution_and_loads_no_engine() -> None:
    answer = kquota("--version")
    assert (answer.exit_code, answer.stdout) == (0, f"kquota {version('kafka-quota-pipeline')}\n")
    assert loaded("--version") & ENGINES == set()
