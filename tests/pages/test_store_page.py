"""The part of docs/object-stores.md that tries a store on one machine is followed line by line, with a real server."""

from pathlib import Path

import pytest

from pipeline.demo.process import free_ports
from tests.object_store import INSTALL, versitygw
from tests.pages.blocks import ROOT
from tests.pages.reader import Reader


def test_the_commands_of_the_page_lead_to_quotas_in_a_store(tmp_path: Path) -> None:
    program = versitygw()
    if program is None:
        pytest.skip(f"needs versitygw, a server that speaks S3: {INSTALL}")
    page = ROOT / "docs" / "object-stores.md"
    assert INSTALL in page.read_text("utf-8")
    (port,) = free_ports(1)
    names = {"7070": str(port), "/tmp/store": str(tmp_path / "store"), "~/go/bin/versitygw": program}  # noqa: S108
    with Reader(tmp_path, names) as reader:
        assert reader.play(page, "store") == []
    assert len(list((tmp_path / "store" / "kquota" / "tables" / "quotas" / "_delta_log").glob("*.json"))) > 1
