"""The commands of the pages that need a job are played beside one demo, each page from its top, as a reader would.

`make pages RENEW=1` writes what was printed into the pages.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.demo.broker import EmbeddedBroker
from pipeline.process import free_ports
from pipeline.tables.quotas.table import QuotaTable
from tests.pages.blocks import PAGES, ROOT, blocks_of
from tests.pages.demo import RunningDemo, running_demo
from tests.pages.transcript import Answer, Reader, play, shape

# A page has dozens of commands, each of which is a process of its own.
pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1_200)]

# A command in the demo's own output: after a sign, or alone in its line; with variables in front, by any path.
HINT = re.compile(r"(?:^ *|· |: )((?:KQUOTA_\w+=\S+ )*(?:\S+/)?kquota [a-z].*)$", re.MULTILINE)


READING = (
    "status",
    "throttles list --all",
    "quotas describe",
    "what-if --quotas .kquota/demo/candidate.yaml --since 1h",
)
"""Commands that the demo's settings file serves, also after its end."""


def pages_with(kind: str) -> list[Path]:
    return [
        page for page in PAGES if any(block.how.split()[:1] == [kind] for block in blocks_of(page.read_text("utf-8")))
    ]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDemo]:
    with running_demo(tmp_path_factory.mktemp("demo")) as running:
        yield running


@pytest.fixture
def reader(demo: RunningDemo) -> Iterator[Reader]:
    """Someone beside the demo; what they edit is put back."""
    quotas = QuotaTable(demo.tables)
    before = quotas.read().version
    with Reader(demo.folder, demo.addresses, demo.happens, {"KQUOTA_CONFIG": ".kquota/demo/kquota.toml"}) as typing:
        yield typing
        typing.run(f"kquota quotas rollback {before} --reason 'for the next page'; kquota mode enforce")


@pytest.mark.parametrize("page", pages_with("demo"), ids=lambda page: page.name)
def test_the_commands_of_a_page_print_what_it_shows_beside_the_demo(page: Path, reader: Reader) -> None:
    assert reader.play(page, "demo") == []


def test_every_command_that_the_demo_prints_runs_as_it_is_printed(demo: RunningDemo, reader: Reader) -> None:
    hints = {shape(hint): hint for hint in HINT.findall(demo.output)}
    assert hints, demo.output
    answers = {hint: reader.run(hint) for hint in hints.values()}
    assert {hint: answer for hint, answer in answers.items() if answer.exit_code} == {}


def test_the_demo_prints_what_the_readme_shows(demo: RunningDemo) -> None:
    """The last test here: it presses Ctrl-C."""
    assert demo.stop() == 0
    (page,) = pages_with("run")
    assert play(page, "run", lambda _: Answer(demo.output, 0)) == []


def test_the_last_commands_and_the_settings_file_serve_after_the_end_of_the_demo(demo: RunningDemo) -> None:
    demo.stop()
    last = HINT.findall(demo.output)[-3:]
    with Reader(demo.folder) as typing:
        assert [typing.run(command).exit_code for command in last] == [0, 0, 0], demo.output
    with Reader(demo.folder, settings={"KQUOTA_CONFIG": ".kquota/demo/kquota.toml"}) as typing:
        ended = {command: typing.run(f"kquota {command}").exit_code for command in READING}
    assert ended == {**dict.fromkeys(READING, 0), "status": 1}


def test_the_commands_of_docs_cluster_lead_to_a_job_on_a_cluster(tmp_path: Path) -> None:
    master, web = (str(port) for port in free_ports(2))
    # `python` is the one of the tests, as a reader has activated an environment.
    search_path = os.pathsep.join(
        [str(tmp_path / ".venv" / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    with EmbeddedBroker(tmp_path / "broker") as broker:
        names = {"broker:9092": broker.bootstrap_servers, "7077": master, "8080": web}
        with Reader(tmp_path, names, settings={"PATH": search_path}) as reader:
            assert reader.play(ROOT / "docs" / "cluster.md", "cluster") == []
            assert reader.run("grep 'Lost executor . on 127.0.0.1' job.log").exit_code == 0
