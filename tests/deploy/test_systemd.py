"""The units, judged by systemd itself."""

import re
from pathlib import Path

import pytest

from tests.deploy.checkers import of_the_system, run
from tests.deploy.commands import UNITS

MOST_EXPOSED = 2.0
KQUOTA = "/opt/kquota/.venv/bin/kquota"


def installed(unit: Path, folder: Path) -> Path:
    """The unit as it would be installed, with a program that is there; a template as its instance 1."""
    target = folder / unit.name.replace("@.", "@1.")
    target.write_text(unit.read_text("utf-8").replace(KQUOTA, "/bin/true"), "utf-8")
    return target


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    analyze = of_the_system("systemd-analyze", "systemd")
    done = run(analyze, "verify", "--man=no", installed(unit, tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_little_is_exposed(unit: Path, tmp_path: Path) -> None:
    analyze = of_the_system("systemd-analyze", "systemd")
    done = run(analyze, "security", "--offline=true", installed(unit, tmp_path))
    (level,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert float(level) <= MOST_EXPOSED
