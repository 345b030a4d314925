"""Every command reads tables in an object store as it reads them on a disk."""

import re
import shutil
from pathlib import Path

import pytest

from tests.object_store import BUCKET, ObjectStore
from tests.pipeline.cli.running import kquota
from tests.pipeline.cli.test_every_table import CLIENT, COMMANDS, SPAN, USER, WITHOUT_TABLES, root

__all__ = ["root"]  # a fixture, found by its name

READING = {command: rest for command, rest in COMMANDS.items() if not command.startswith((*WITHOUT_TABLES, "tables"))}
MORE = {
    "quotas export": (),
    "status": (),
    "top --once": (),
    f"throttles explain {USER} {CLIENT}": (),
    "throttles verify": SPAN,
}

OF_NOW = ("status", "top", "throttles list", "throttles explain")
"""They show how long ago something was."""


@pytest.fixture(scope="module")
def stored(root: str, store: ObjectStore) -> str:
    """The same tables in a store."""
    shutil.copytree(root, store.folder / BUCKET / "commands", ignore=shutil.ignore_patterns("*.lock", "*.pid"))
    return "s3://kquota/commands"


@pytest.mark.parametrize("command", [*READING, *MORE])
def test_the_answer_is_that_of_the_same_tables_on_a_disk(
    command: str,
    root: str,
    stored: str,
    store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    candidate = str(Path(root) / "candidate.yaml")
    rest = [candidate if word == "CANDIDATE" else word for word in {**READING, **MORE}[command]]
    on_disk, in_store = (kquota(*command.split(), *rest, "--tables", place) for place in (root, stored))
    assert in_store.exit_code == on_disk.exit_code, in_store.stderr
    shown = [answer.stdout.replace(stored, root) for answer in (in_store, on_disk)]
    assert shown[0]
    if command.startswith(OF_NOW):
        shown = [re.sub(r"\d+", "#", text) for text in shown]
    assert shown[0] == shown[1]


def test_an_edit_is_a_commit_in_the_store(stored: str, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    edit = ("quotas", "alter", "--user", "eve", "--add-config", "producer_byte_rate=5", "--reason", "try")
    assert kquota(*edit, "--tables", stored).exit_code == 0
    assert "eve" in kquota("quotas", "describe", "--tables", stored).stdout
    assert not list((store.folder / BUCKET / "commands").glob("*.lock"))
