"""`kquota meter reporter`: the jar, and what a broker must be given."""

from pathlib import Path

import pytest

from pipeline.meter import reporter
from tests.pipeline.cli.running import kquota

LINES = """\
metric.reporters=org.apache.kafka.common.metrics.JmxReporter,io.kquota.reporter.UsageReporter
kquota.reporter.topic=quota.usage.v1
kquota.reporter.bootstrap.servers=broker:9092
"""


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the jar of this installation is; not made yet."""
    path = tmp_path / "installed" / "kquota-reporter.jar"
    path.parent.mkdir()
    monkeypatch.setattr(reporter, "REPORTER_JAR", path)
    return path


@pytest.mark.parametrize("named", ["libs", "libs/kquota-reporter.jar"])
def test_it_writes_the_jar_and_prints_the_lines_of_server_properties(jar: Path, tmp_path: Path, named: str) -> None:
    jar.write_bytes(b"a jar")
    (tmp_path / "libs").mkdir()
    answer = kquota("meter", "reporter", "--jar", str(tmp_path / named), "--bootstrap-server", "broker:9092")
    assert (answer.exit_code, answer.stdout) == (0, LINES)
    assert (tmp_path / "libs" / "kquota-reporter.jar").read_bytes() == b"a jar"


def test_a_checkout_without_the_jar_names_what_makes_it(jar: Path, tmp_path: Path) -> None:
    answer = kquota("meter", "reporter", "--jar", str(tmp_path))
    assert answer.exit_code == 1
    assert answer.stderr == (
        f"kquota: the reporter's jar is not in {jar.parent}: a checkout has only its sources. Fix: make ready\n"
    )


def test_a_folder_that_does_not_exist_is_refused(jar: Path, tmp_path: Path) -> None:
    jar.write_bytes(b"a jar")
    answer = kquota("meter", "reporter", "--jar", str(tmp_path / "not" / "there.jar"))
    assert answer.exit_code == 1
    assert "cannot be written to" in answer.stderr
