"""Plants each defect into a copy of the tree, one at a time, and says which test finds it.

    python -m tests.mutations [--only TEXT] [--all] [--jobs N]

Runs for each defect only the tests that its row names, up to the first that fails. The same tests run once without a
defect: what fails there finds nothing. Ends with 1 if a defect is not found or cannot be planted.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple, TypeVar

from tests.mutations.defects import DEFECTS
from tests.mutations.planting import ROOT, Defect, NotPlantable, Tree

_NOT_COPIED: Final = (".git", ".venv", ".kquota", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")
_PATIENCE_SECONDS: Final = 600
_PATIENCE_WITH_ALL_SECONDS: Final = 3_600
_QUICK: Final = "not spark and not broker and not long"
_ENDED: Final = re.compile(r"^(PASSED|FAILED|ERROR) (.*?)(?: - .*)?$", re.MULTILINE)
_TESTS_FAILED: Final = 1

_T = TypeVar("_T")


class Outcome(NamedTuple):
    """What became of a defect: the test that finds it, or why there is none."""

    what: str
    finder: str
    trouble: str = ""


class Ran(NamedTuple):
    """How a run of pytest ended."""

    code: int
    printed: str

    def ended(self, *results: str) -> list[str]:
        """The tests that ended so, in order."""
        return [test for result, test in _ENDED.findall(self.printed) if result in results]


class Workshop:
    """A copy of the tree in which one defect at a time is planted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._copy = folder / "tree"
        self._tree = Tree(self._copy)
        self._changed_at = int(time.time())
        shutil.copytree(ROOT, self._copy, ignore=shutil.ignore_patterns(*_NOT_COPIED), symlinks=True)
        (self._copy / ".venv").symlink_to(sys.prefix)

    def outcome(self, defect: Defect) -> Outcome:
        """Plant a defect, run the tests that should find it, and take it out again."""
        found = self._looked_for(defect)
        print(f"{defect.what}  →  {found.trouble or found.finder}", flush=True)  # noqa: T201
        return found

    def _looked_for(self, defect: Defect) -> Outcome:
        try:
            planted = self._tree.planted(defect)
        except NotPlantable as exc:
            return Outcome(defect.what, "", f"cannot be planted any more: {exc}")
        path = self._copy / planted.path
        sound = path.read_text(encoding="utf-8")
        self._write(path, planted.text)
        try:
            ran = self.run(defect.finder.split(), *_choice(defect.is_slow), "-x")
        finally:
            self._write(path, sound)
        if ran is None:
            return Outcome(defect.what, "", f"NO ANSWER within {_PATIENCE_SECONDS} s")
        failed = ran.ended("FAILED", "ERROR")
        if ran.code == _TESTS_FAILED and failed:
            return Outcome(defect.what, failed[0])
        if ran.code == 0:
            return Outcome(defect.what, "", f"NOT FOUND by {defect.finder}")
        last = next(filter(None, reversed(ran.printed.splitlines())), "")
        return Outcome(defect.what, "", f"NOT RUN, pytest ended with {ran.code}: {last}")

    def run(self, tests: Iterable[str], *options: str, patience_seconds: int = _PATIENCE_SECONDS) -> Ran | None:
        """Run tests in the copy; None if they do not end."""
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-rpfE"]
        command += ["--hypothesis-profile=first-failure", f"--basetemp={self._folder / 'tests'}", *options, *tests]
        environment = {**os.environ, "PYTHONPATH": str(self._copy), "PYTHONPYCACHEPREFIX": str(self._folder / "cache")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        try:
            done = subprocess.run(
                command,
                cwd=self._copy,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=patience_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
        return Ran(done.returncode, done.stdout)

    def failing(self, defects: Sequence[Defect]) -> set[str]:
        """The tests of these defects that fail, or do not run, without any."""
        failed: set[str] = set()
        for is_slow in (False, True):
            tests = dict.fromkeys(test for one in defects if one.is_slow is is_slow for test in one.finder.split())
            if not tests:
                continue
            ran = self.run(tests, *_choice(is_slow), patience_seconds=_PATIENCE_WITH_ALL_SECONDS)
            failed.update(tests if ran is None else ran.ended("FAILED", "ERROR"))
        return failed

    def _write(self, path: Path, text: str) -> None:
        """Each text has a time of its own: Python takes compiled modules by time and size."""
        path.write_text(text, encoding="utf-8")
        self._changed_at += 1
        os.utime(path, (self._changed_at, self._changed_at))


def main() -> int:
    """Look for all defects and print what is not found. Returns 1 if there is any."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description="Look for planted defects.")
    about = "only defects with this text in their sentence or in the names of their tests"
    parser.add_argument("--only", default="", help=about)
    parser.add_argument("--all", action="store_true", help="also those that only a broker or Spark finds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    given = parser.parse_args()
    chosen = [defect for defect in DEFECTS if given.only in defect.what or given.only in defect.finder]
    chosen = [defect for defect in chosen if given.all or not defect.is_slow]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        free: SimpleQueue[Workshop] = SimpleQueue()
        for number in range(given.jobs):
            free.put(Workshop(Path(folder) / str(number)))

        def in_a_workshop(work: Callable[[Workshop], _T]) -> _T:
            workshop = free.get()
            try:
                return work(workshop)
            finally:
                free.put(workshop)

        without = pool.submit(in_a_workshop, lambda workshop: workshop.failing(chosen))
        outcomes = list(pool.map(lambda defect: in_a_workshop(lambda workshop: workshop.outcome(defect)), chosen))
        unsound = without.result()
    troubles = [
        f"{one.what}: {one.trouble or f'NOT FOUND: {one.finder} fails without a defect, too'}"
        for one in outcomes
        if one.trouble or one.finder in unsound
    ]
    print(*troubles, f"{len(outcomes) - len(troubles)} of {len(outcomes)} defects are found", sep="\n")  # noqa: T201
    return int(bool(troubles))


def _choice(is_slow: bool) -> Sequence[str]:
    return () if is_slow else ("-m", _QUICK)


if __name__ == "__main__":
    sys.exit(main())
