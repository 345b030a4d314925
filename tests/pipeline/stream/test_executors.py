"""Executors: what is said when they come, go, or stay away; what they get of this project is all that they import."""

import logging
import subprocess
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest

from pipeline.stream.executors import NEEDED_TO_READ, ExecutorBook, Loss, zip_package
from tests.spark_cluster.standalone import python_without_us
from tests.waiting import PATIENCE_SECONDS

MASTER = "spark://there:7077"
NONE: Mapping[str, Loss] = {}
TWO = {"0": "a:1", "1": "b:2"}


@pytest.fixture
def book() -> ExecutorBook:
    return ExecutorBook(MASTER, "1g of memory and a core")


def said(book: ExecutorBook, places: Mapping[str, str], now_seconds: float, **more: object) -> list[str]:
    return [text for _, text in book.note(places, NONE, now_seconds, **more)]  # type: ignore[arg-type]


def test_no_executor_is_said_after_ten_seconds_and_again_each_five_minutes(book: ExecutorBook) -> None:
    told_at = [second for second in range(0, 700) if said(book, {}, 100.0 + second)]
    assert told_at == [10, 310, 610]


def test_the_line_says_what_is_missing_where_and_what_to_do(book: ExecutorBook) -> None:
    list(book.note({}, NONE, 0.0))
    ((level, text),) = book.note({}, NONE, 12.4)
    assert level == logging.WARNING
    assert text.startswith(
        "no executor from spark://there:7077 for 12 s (1g of memory and a core is wanted), so no usage is read. "
        "Fix: see on the master's page"
    )
    assert "\n" not in text


def test_executors_that_arrive_are_said_once_and_the_wait_begins_anew(book: ExecutorBook) -> None:
    said(book, {}, 0.0)
    assert len(said(book, {}, 10.0)) == 1
    assert said(book, TWO, 11.0) == ["2 executors at spark://there:7077; new: 0 at a:1, 1 at b:2"]
    assert said(book, TWO, 12.0) == []
    assert said(book, {}, 13.0) == []
    assert said(book, {}, 22.9) == []
    assert len(said(book, {}, 23.0)) == 1


def test_where_none_are_wanted_nothing_is_said(book: ExecutorBook) -> None:
    assert not any(said(book, {}, float(second), are_wanted=False) for second in range(60))


@pytest.mark.parametrize(
    ("left", "where"),
    [
        ({"1": "b:2", "2": "c:3"}, "on the 2 executors left"),
        ({"1": "b:2"}, "on the 1 executor left"),
        ({}, "when another executor comes"),
    ],
)
def test_a_loss_says_where_its_tasks_run_again(book: ExecutorBook, left: Mapping[str, str], where: str) -> None:
    said(book, {**left, "0": "a:1"}, 0.0)
    ((level, text),) = book.note(left, {"0": Loss("a:1", "worker lost: gone.")}, 1.0)
    assert level == logging.WARNING
    assert text == (
        "executor 0 at a:1 is lost: its worker is gone (worker lost: gone). "
        f"Its tasks run again {where}; no usage is lost or counted twice"
    )


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("", "no reason is known"),
        ("Command exited with code 1.", "Command exited with code 1"),
        (
            "Command exited with code 137",
            "it was killed, perhaps for a lack of memory (Command exited with code 137)",
        ),
        ("Command exited with code 52", "it had too little memory (Command exited with code 52)"),
        ("Command exited with code 521", "Command exited with code 521"),
        (
            "Executor heartbeat timed out after 120 ms",
            "it does not answer any more (Executor heartbeat timed out after 120 ms)",
        ),
    ],
)
def test_the_cause_is_in_plain_words_with_sparks_own_beside_it(reason: str, cause: str) -> None:
    assert Loss("a:1", reason).cause == cause


def answer(python: Path, search_path: str, program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(python), "-c", program],
        cwd=python.parent,
        env={"PYTHONPATH": search_path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


READER = ("pipeline.stream.usage_reader",)


def test_a_python_with_the_needed_packages_runs_from_the_zip_alone(tmp_path: Path) -> None:
    modules, needed = READER, NEEDED_TO_READ
    python, shipped = python_without_us(tmp_path), zip_package(tmp_path)
    program = (
        f"import sys, {', '.join(modules)}; print({modules[0]}.__file__);"
        "print(sorted({name.split('.')[0] for name in sys.modules if 'site-packages' in"
        " str(getattr(sys.modules[name], '__file__', ''))}))"
    )
    assert "No module named 'pipeline" in answer(python, "", program).stderr
    done = answer(python, str(shipped), program)
    path, loaded = done.stdout.splitlines()
    assert path == f"{shipped}/{modules[0].replace('.', '/')}.py", done.stderr
    for package in needed:
        assert repr(package) in loaded
    for engine in ("pyspark", "pandas", "delta", "kafka", "typer"):
        assert repr(engine) not in loaded


def test_a_second_zip_takes_the_place_of_the_first(tmp_path: Path) -> None:
    first = zip_package(tmp_path)
    names = ZipFile(first).namelist()
    assert {name.split("/")[0] for name in names} == {"pipeline", "purgatory", "quota", "schemas"}
    assert ZipFile(zip_package(tmp_path)).namelist() == names
