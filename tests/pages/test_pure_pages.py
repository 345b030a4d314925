"""The pages: each block says how it is tested, each command exists, and what needs neither broker nor Spark is played.

Each page is played from its top, as a reader would. `make pages RENEW=1` writes what was printed into the pages.
"""

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from markdown_it import MarkdownIt
from typer.main import get_command

from bench.what_if import write_quotas, write_usage
from deploy.site.hook import llms_text
from pipeline.cli.main import app
from pipeline.clock import wall_ms
from pipeline.process import free_ports
from tests.object_store import INSTALL, versitygw
from tests.pages.blocks import PAGES, ROOT, blocks_of
from tests.pages.transcript import Reader, exchanges

_COMMAND: Final = re.compile(r"(?:^|[\s;|&(])kquota ((?:[^;|&()\n]|\\\n)*)")
_FLAG: Final = re.compile(r"--?[a-z][a-z-]*")


def unknown_in(page: str) -> Iterator[str]:
    """The commands that do not exist, and the flags that their commands do not have."""
    texts = [exchange.command for block in blocks_of(page) if block.is_shell for exchange in exchanges(block)]
    for token in MarkdownIt("commonmark").parse(page):
        texts += [child.content for child in token.children or () if child.type == "code_inline"]
    for text in texts:
        for found in _COMMAND.finditer(text):
            yield from _unknown(found[1].split())


def _unknown(words: list[str]) -> Iterator[str]:
    command, path = _kquota(), "kquota"
    while hasattr(command, "commands") and words and re.fullmatch("[a-z][a-z-]*", words[0]):
        word = words[0]
        path += f" {words.pop(0)}"
        if word not in command.commands:
            yield path
            return
        command = command.commands[word]
    flags = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
    yield from (f"{path} {word}" for word in words if _FLAG.fullmatch(word) and word not in flags)


@cache
def _kquota() -> Any:
    return get_command(app)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_a_page_says_how_it_is_tested_and_names_commands_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [block for block in blocks_of(text) if not block.says_how_it_is_tested] == [], "tests/pages/blocks.py: ways"
    assert list(unknown_in(text)) == []


def test_each_of_twenty_questions_has_an_answer_with_a_link() -> None:
    _, *parts = re.split(r"^## (.+)$", (ROOT / "docs" / "questions.md").read_text("utf-8"), flags=re.MULTILINE)
    answers = dict(zip(parts[::2], parts[1::2], strict=True))
    assert len(answers) >= 20
    assert [question for question, answer in answers.items() if not re.search(r"\]\([\w/-]+\.md", answer)] == []


def test_llms_txt_names_every_page_once_of_the_checkout_and_of_the_site() -> None:
    named = re.findall(r"\]\((\S+)\)", (ROOT / "llms.txt").read_text("utf-8"))
    pages = [str(page.relative_to(ROOT)) for page in (*PAGES, ROOT / "docs" / "reference" / "api.md")]
    assert sorted(named) == sorted(pages)
    navigation = (ROOT / "deploy" / "site" / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    pages = [f"{name}.html" for name in re.findall(r"([\w/-]+)\.md", navigation)]
    assert sorted(re.findall(r"\]\((\S+)\)", llms_text())) == sorted(pages)


_CLIENTS: Final = 8
_SECONDS: Final = 1_200
_CYCLE_MS: Final = 120_000
"""Usage repeats itself so often, so a start at a multiple of it gives the same answers every time."""
PURE = [page for page in PAGES if any(block.how.startswith("pure") for block in blocks_of(page.read_text("utf-8")))]


def recorded_usage(page: Path, folder: Path) -> dict[str, str]:
    """Twenty minutes of usage under live quotas, and each file that the page shows with `cat`."""
    root = str(folder / ".kquota" / "tables")
    write_quotas(root, _CLIENTS)
    # After the edit: a replay takes for each instant the quotas that were in force then.
    start_ms = (wall_ms() // _CYCLE_MS + 2) * _CYCLE_MS
    write_usage(root, start_ms, _SECONDS, _CLIENTS)
    for block in blocks_of(page.read_text(encoding="utf-8")):
        for shown in exchanges(block) if block.how == "pure" else ():
            if shown.command.startswith("cat "):
                (folder / shown.command.split()[1]).write_text("".join(f"{line}\n" for line in shown.answer))
    ends = ("2026-11-22T17:10:00", start_ms), ("2026-11-22T17:30:00", start_ms + _SECONDS * 1_000)
    return {shown: f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}" for shown, at_ms in ends}


@pytest.fixture
def without_job(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which commands find no pandas, as where kquota is installed without the extra `job`.

    Where it is there pyarrow imports it, which is a third of what a command takes.
    """
    folder = tmp_path_factory.mktemp("without-job")
    (folder / "pandas.py").write_text("raise ImportError\n")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


@pytest.mark.parametrize("page", PURE, ids=lambda page: page.name)
def test_the_commands_of_a_page_print_what_it_shows(page: Path, tmp_path: Path, without_job: dict[str, str]) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    names = recorded_usage(page, tmp_path) if page.name == "what-if.md" else {}
    with Reader(tmp_path, names, settings=without_job) as reader:
        assert reader.play(page, "pure") == []


def test_the_commands_of_the_page_lead_to_quotas_in_a_store(tmp_path: Path, without_job: dict[str, str]) -> None:
    program = versitygw()
    if program is None:
        pytest.skip(f"needs versitygw, a server that speaks S3: {INSTALL}")
    page = ROOT / "docs" / "object-stores.md"
    assert INSTALL in page.read_text("utf-8")
    (port,) = free_ports(1)
    names = {"7070": str(port), "/tmp/store": str(tmp_path / "store"), "~/go/bin/versitygw": program}  # noqa: S108
    with Reader(tmp_path, names, settings=without_job) as reader:
        assert reader.play(page, "store") == []
    assert len(list((tmp_path / "store" / "kquota" / "tables" / "quotas" / "_delta_log").glob("*.json"))) > 1
