"""A process that ends while Arrow's threads still free memory of Python ends with its own exit code."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

# A store that is read through Python, whose memory takes a while to be freed: so Arrow's threads are at it at the end.
SLOW_STORE = """
import sys, time
import pyarrow as pa
from pyarrow.fs import PyFileSystem
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pipeline.process import run_to_exit

class Slow(bytes):
    def __del__(self):
        time.sleep(0.2)

class File:
    def __init__(self, file):
        self._file = file
    def read(self, size=-1):
        return Slow(self._file.read(size))
    def __getattr__(self, name):
        return getattr(self._file, name)

class Store(DeltaStorageHandler):
    def open_input_file(self, path):
        return pa.PythonFile(File(self._handler.open_input_file(path)), "r")

def program():
    table = DeltaTable(sys.argv[1])
    store = Store.from_table(table._table, None, table._table.get_add_file_sizes())
    print(table.to_pyarrow_dataset(filesystem=PyFileSystem(store)).to_table().num_rows)
    return 3

"""
ENDINGS = {
    "returns": ("return 3", 3),
    "raises SystemExit": ("sys.exit(4)", 4),
    "raises SystemExit without a code": ("sys.exit()", 0),
    "raises an error": ("raise ValueError('so')", 1),
}


def run(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)


def test_the_exit_code_is_the_programs_while_memory_is_still_freed(tmp_path: Path) -> None:
    for first in range(4):
        write_deltalake(tmp_path / "t", pa.table({"at_ms": [first], "name": ["n"]}), mode="append")
    for _ in range(3):
        ended = run(SLOW_STORE + "run_to_exit(program)", str(tmp_path / "t"))
        assert (ended.returncode, ended.stdout, ended.stderr) == (3, "4\n", "")


@pytest.mark.parametrize(("ending", "code"), ENDINGS.values(), ids=ENDINGS)
def test_exit_functions_run_and_output_is_flushed_however_the_program_ends(ending: str, code: int) -> None:
    script = "\n".join(
        [
            "import atexit, sys",
            "from pipeline.process import run_to_exit",
            "def program():",
            "    atexit.register(lambda: print('exit function'))",
            "    sys.stdout.write('result, ')",
            f"    {ending}",
            "run_to_exit(program)",
        ]
    )
    ended = run(script)
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == "result, exit function\n"
    assert ("ValueError: so" in ended.stderr) == (code == 1)
