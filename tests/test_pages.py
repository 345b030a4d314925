"""Every block of code of README.md and docs/*.md is tested, or says why not; every command in them exists."""

from pathlib import Path

import pytest

from tests.pages.blocks import PAGES, mistakes_in
from tests.pages.mentions import unknown_in

COMMAND = "```console pure\n$ kquota mode\nenforce\n```\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_a_page_says_how_it_is_tested(page: Path) -> None:
    mistakes = list(mistakes_in(page.read_text(encoding="utf-8")))
    assert mistakes == [], "\n".join([*mistakes, "tests/pages/blocks.py has the ways"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_flag_that_a_page_names_exists(page: Path) -> None:
    assert list(unknown_in(page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "block",
    [
        "```\nplain\n```\n",
        "```sh\nkquota mode\n```\n",
        "```sh unplayed:\nkquota mode\n```\n",
        "```console slowly\n$ kquota mode\n```\n",
        "```text\n$ kquota mode\n```\n",
        "text\n\n    kquota mode\n",
        "* a list\n\n  ```sh\n  kquota mode\n  ```\n",
    ],
)
def test_a_block_in_no_class_is_a_mistake(block: str) -> None:
    assert len(list(mistakes_in(f"# Page\n\n{COMMAND}\n{block}"))) == 1


@pytest.mark.parametrize(
    "block",
    [COMMAND, "```sh unplayed: needs sudo\nsudo ls\n```\n", '```json\n{"a": 1}\n```\n', "```sh demo\nls\n```\n"],
)
def test_a_block_of_a_class_is_none(block: str) -> None:
    assert list(mistakes_in(block)) == []


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("`kquota quotas describe --user alice -o json`", []),
        ("`kquota quotas descibe`", ["kquota quotas descibe"]),
        ("`kquota quotas describe --usr alice`", ["kquota quotas describe --usr"]),
        ("```sh demo\nKQUOTA_JOB=a kquota modes\n```\n", ["kquota modes"]),
        ("```sh demo\nkquota mode | head -1; echo $?\nls --all\n```\n", []),
        ("`kquota throttles explain ID`", []),
        ("the command `kquota`, and `kquota-<job>`", []),
    ],
)
def test_a_command_or_flag_that_does_not_exist_is_found(text: str, unknown: list[str]) -> None:
    assert list(unknown_in(text)) == unknown
