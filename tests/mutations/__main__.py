"""Plants each defect into a copy of the tree, one at a time, and says which test finds it.

    python -m tests.mutations [--only TEXT] [--all] [--jobs N] [--table FILE]

Runs for each defect only the tests that its row names, up to the first that fails. The same tests run once without a
defect: what fails there finds nothing. The defects of tests/faults/mutations.py are seeded by their own test, which
passes if the verifier finds them; they are listed with it. Ends with 1 if a defect is not found or cannot be planted.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from bench.pages import table
from tests.faults.mutations import MUTATIONS
from tests.mutations.defects import DEFECTS
from tests.mutations.planting import ROOT, Defect, NotPlantable, Tree

_NOT_COPIED: Final = (".git", ".venv", ".kquota", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")
_PATIENCE_SECONDS: Final = 600
_QUICK: Final = "not spark and not broker and not long"
_VERIFIER: Final = "tests/faults/test_mutations.py"
_ENDED: Final = re.compile(r"^(PASSED|FAILED|ERROR) (.*?)(?: - .*)?$", re.MULTILINE)
_TESTS_FAILED: Final = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a defect: the test that finds it, or why there is none."""

    what: str
    where: str
    finder: str
    trouble: str = ""

    @property
    def text(self) -> str:
        """Found by which test, or what else."""
        return self.trouble or self.finder


@dataclass(frozen=True, slots=True)
class Ran:
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
        found = Outcome(defect.what, defect.where, defect.finder)
        try:
            planted = self._tree.planted(defect)
        except NotPlantable as exc:
            return replace(found, trouble=f"cannot be planted any more: {exc}")
        path = self._copy / planted.path
        sound = path.read_text(encoding="utf-8")
        self._write(path, planted.text)
        try:
            ran = self.run(defect.finder.split(), *_choice(defect.is_slow), "-x")
        finally:
            self._write(path, sound)
        if ran is None:
            return replace(found, trouble=f"NO ANSWER within {_PATIENCE_SECONDS} s")
        failed = ran.ended("FAILED", "ERROR")
        if ran.code == _TESTS_FAILED and failed:
            return replace(found, finder=failed[0])
        if ran.code == 0:
            return replace(found, trouble=f"NOT FOUND by {defect.finder}")
        last = next(filter(None, reversed(ran.printed.splitlines())), "")
        return replace(found, trouble=f"NOT RUN, pytest ended with {ran.code}: {last}")

    def run(self, tests: Iterable[str], *options: str) -> Ran | None:
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
                timeout=_PATIENCE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
        return Ran(done.returncode, done.stdout)

    def _write(self, path: Path, text: str) -> None:
        """Each text has a time of its own: Python takes compiled modules by time and size."""
        path.write_text(text, encoding="utf-8")
        self._changed_at += 1
        os.utime(path, (self._changed_at, self._changed_at))


def main() -> int:
    """Look for all defects and print the table. Returns 1 if one is not found."""
    given = _arguments()
    chosen = [defect for defect in DEFECTS if given.only in defect.what or given.only in defect.finder]
    chosen = [defect for defect in chosen if given.all or not defect.is_slow]
    seeded = [what for what in MUTATIONS if given.only in what or given.only in _VERIFIER]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        free: SimpleQueue[Workshop] = SimpleQueue()
        for number in range(given.jobs):
            free.put(Workshop(Path(folder) / str(number)))
        without = pool.submit(_without, free, chosen)
        by_verifier = pool.submit(_by_verifier, free, seeded)
        outcomes = list(pool.map(lambda defect: _looked_for(free, defect), chosen))
        unsound = without.result()
        outcomes = [_judged(outcome, unsound) for outcome in outcomes] + by_verifier.result()
    lost = [outcome for outcome in outcomes if outcome.trouble]
    for outcome in lost:
        print(f"{outcome.what}: {outcome.trouble}")  # noqa: T201
    print(f"{len(outcomes) - len(lost)} of {len(outcomes)} defects are found")  # noqa: T201
    if given.table:
        rows = table(
            ["defect", "planted in", "found by"], [[one.what, f"`{one.where}`", f"`{one.text}`"] for one in outcomes]
        )
        given.table.write_text(f"{rows}\n", encoding="utf-8")
    return int(bool(lost))


def _looked_for(free: "SimpleQueue[Workshop]", defect: Defect) -> Outcome:
    workshop = free.get()
    try:
        outcome = workshop.outcome(defect)
    finally:
        free.put(workshop)
    print(f"{outcome.what}  →  {outcome.text}", flush=True)  # noqa: T201
    return outcome


def _without(free: "SimpleQueue[Workshop]", defects: list[Defect]) -> set[str]:
    """The tests that fail, or do not run, without a defect."""
    failed: set[str] = set()
    workshop = free.get()
    try:
        for is_slow in (False, True):
            tests = dict.fromkeys(test for one in defects if one.is_slow is is_slow for test in one.finder.split())
            ran = workshop.run(tests, *_choice(is_slow)) if tests else Ran(0, "")
            failed.update(tests if ran is None else ran.ended("FAILED", "ERROR"))
    finally:
        free.put(workshop)
    return failed


def _judged(outcome: Outcome, unsound: set[str]) -> Outcome:
    if outcome.trouble or outcome.finder not in unsound:
        return outcome
    return replace(outcome, trouble=f"NOT FOUND: {outcome.finder} fails without a defect, too")


def _by_verifier(free: "SimpleQueue[Workshop]", defects: list[str]) -> list[Outcome]:
    """The defects that a test seeds by itself: it passes if the verifier finds them."""
    tests = {what: f"{_VERIFIER}::test_a_seeded_defect_is_found[{what}]" for what in defects}
    workshop = free.get()
    try:
        ran = workshop.run(tests.values()) if tests else None
    finally:
        free.put(workshop)
    passed = set() if ran is None else set(ran.ended("PASSED"))
    return [
        Outcome(what, MUTATIONS[what].name, test, "" if test in passed else f"NOT FOUND by {test}")
        for what, test in tests.items()
    ]


def _choice(is_slow: bool) -> Sequence[str]:
    return () if is_slow else ("-m", _QUICK)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description="Look for planted defects.")
    parser.add_argument(
        "--only", default="", help="only defects with this text in their sentence or in the names of their tests"
    )
    parser.add_argument("--all", action="store_true", help="also those that only a broker or Spark finds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    parser.add_argument("--table", type=Path, help="a Markdown file for the table")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
