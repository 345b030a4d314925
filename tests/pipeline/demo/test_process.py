import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.demo.process import spawn


@pytest.mark.parametrize("niceness", [0, 10])
def test_a_process_yields_as_much_as_it_is_told(tmp_path: Path, niceness: int) -> None:
    command = [sys.executable, "-c", "import os; print(os.nice(0))"]
    with spawn(command, cwd=tmp_path, output=subprocess.PIPE, niceness=niceness) as child:
        assert int(child.communicate()[0]) == min(os.nice(0) + niceness, 19)
