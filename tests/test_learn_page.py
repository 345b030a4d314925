"""What docs/learn.md shows is what the command prints."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMAND = ("simulate", "examples/simulate/events.jsonl", "examples/simulate/quotas.yaml")


def test_the_page_shows_what_the_simulation_prints() -> None:
    page = (ROOT / "docs" / "learn.md").read_text()
    shown = re.search(r"```\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    command = [sys.executable, "-m", "pipeline.cli.main", *COMMAND]
    env = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=True, text=True, timeout=120)
    assert f"kquota {' '.join(COMMAND)}" in page
    assert done.stdout == shown[1]
