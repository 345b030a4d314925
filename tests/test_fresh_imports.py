"""What an import loads, in a fresh interpreter: a program that uses one part must not pay for the engines."""

import subprocess
import sys

import pytest

from tests.waiting import PATIENCE_SECONDS

ENGINES = ("pyspark", "delta", "deltalake", "py4j")


@pytest.mark.parametrize(
    "module",
    [
        "schemas.throttle_record",
        "quota.engine",
        "purgatory.batch_wheel",
        "purgatory.delayed_operation_purgatory",
        "pipeline.gate.view",
        "pipeline.gate.gate",
        "pipeline.throttle.gate",
        "pipeline.cli.gate",
    ],
)
def test_an_import_loads_no_engine(module: str) -> None:
    program = f"import sys, {module}; print(*[name for name in {ENGINES} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.stdout.split() == []
