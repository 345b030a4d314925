"""What an import loads, in a fresh interpreter: a program that uses one part must not pay for the engines."""

import json
import subprocess
import sys

from tests.waiting import PATIENCE_SECONDS

ENGINES = ("pyspark", "delta", "deltalake", "py4j")
MODULES = (
    "schemas.throttle_record",
    "quota.engine",
    "purgatory.batch_wheel",
    "purgatory.delayed_operation",
    "pipeline.gate.waiting_room",
    "pipeline.gate.gate",
    "pipeline.cli.services",
)
# One interpreter for all: what none of them has loaded, no single one loads.
PROGRAM = f"""
import importlib, json, sys
engines = {{}}
for module in {MODULES}:
    importlib.import_module(module)
    engines[module] = [name for name in {ENGINES} if name in sys.modules]
print(json.dumps(engines))
"""


def test_an_import_loads_no_engine() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, check=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert json.loads(done.stdout) == {module: [] for module in MODULES}
