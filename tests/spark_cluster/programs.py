"""What the cluster's programs are made of: the wheel, a program for spark-submit, a Python for executors."""

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

from tests.waiting import PATIENCE_SECONDS

ROOT: Final = Path(__file__).parents[2]
APP: Final = "from pipeline.cli.main import main; raise SystemExit(main())\n"
"""The program of docs/cluster.md."""


def installed_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout and install it, alone, into a folder. Returns the folder for PYTHONPATH."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    _run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    _run(*pip, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel))
    return site


def app(folder: Path) -> Path:
    """Write the program."""
    path = folder / "kquota_app.py"
    path.write_text(APP, encoding="utf-8")
    return path


def python_without_us(folder: Path, with_packages: bool = True) -> Path:
    """A Python for executors that does not find this project by itself; and, if asked for, no other package either."""
    site = sysconfig.get_paths()["purelib"]
    path = folder / ("python-alone" if not with_packages else "python")
    # -S leaves out the files *.pth, one of which names the checkout.
    found = f'PYTHONPATH="$PYTHONPATH:{site}" ' if with_packages else ""
    path.write_text(f'#!/bin/sh\n{found}exec "{sys.executable}" -S "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=PATIENCE_SECONDS, capture_output=True)
