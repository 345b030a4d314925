"""docs/cluster.md is followed line by line, with a real broker and a real Spark cluster."""

import os
import sys
from pathlib import Path

import pytest

from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.process import free_ports
from tests.pages.blocks import ROOT
from tests.pages.reader import Reader

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1_200)]


def test_the_commands_of_the_page_lead_to_a_job_on_a_cluster(tmp_path: Path) -> None:
    master, web = (str(port) for port in free_ports(2))
    # `python` is the one of the tests, as a reader has activated an environment.
    search_path = os.pathsep.join(
        [str(tmp_path / ".venv" / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    with EmbeddedBroker(tmp_path / "broker") as broker:
        names = {"broker:9092": broker.bootstrap_servers, "7077": master, "8080": web}
        with Reader(tmp_path, names, settings={"PATH": search_path}) as reader:
            assert reader.play(ROOT / "docs" / "cluster.md", "cluster") == []
            told = reader.run("cat job.log").text
            assert "executor 1 at 127.0.0.1" in told or "executor 0 at 127.0.0.1" in told
