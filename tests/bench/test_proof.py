"""The proof page and the figures of README.md are those of the pages that benchmarks have written."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench import proof


def test_the_proof_page_is_the_one_that_the_command_writes() -> None:
    assert (proof.DOCS / "proof.md").read_text("utf-8") == proof.proof_page(), "python -m bench --proof"


def test_every_figure_of_the_readme_stands_on_the_proof_page() -> None:
    readme, page = proof.README.read_text("utf-8"), proof.proof_page()
    table = readme.partition(proof.MARKS[0])[2].partition(proof.MARKS[1])[0].strip()
    assert table == proof.readme_table(), "python -m bench --proof"
    figures = [row.split("[")[1].split("]")[0] for row in table.splitlines()[2:]]
    assert len(figures) == 4
    assert [figure for figure in figures if figure not in page] == []


@pytest.mark.parametrize("claim", proof.CLAIMS, ids=lambda claim: claim.what[:40])
def test_every_claim_has_a_figure_a_command_a_day_and_a_refutation(claim: proof.Claim) -> None:
    what, figure, command, day, java, refuted = proof.cells(claim)
    assert all((what, figure, len(command) > 2, day.startswith("20"), "Java" in java, refuted))


def test_another_figure_on_a_page_is_another_figure_of_the_claim() -> None:
    claim = next(claim for claim in proof.CLAIMS if claim.page == "bench/probe.md")
    assert "p50 99 ms" in claim.figure(re.sub(r"p50 \d+ ms", "p50 99 ms", (proof.DOCS / claim.page).read_text("utf-8")))


def test_a_page_without_the_figure_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "DOCS", tmp_path)
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "probe.md").write_text("# probe\n")
    claim = next(claim for claim in proof.CLAIMS if claim.page == "bench/probe.md")
    with pytest.raises(LookupError, match="no place of the page"):
        proof.cells(replace(claim))
