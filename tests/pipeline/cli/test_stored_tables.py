"""Every command reads tables in an object store, and tables with columns of others, as it reads its own on a disk."""

import re
import shutil
from pathlib import Path

import pytest

from pipeline.tables.layout import TABLES
from tests.object_store import BUCKET, ObjectStore
from tests.pipeline.cli.running import kquota
from tests.pipeline.cli.test_every_table import CLIENT, COMMANDS, SPAN, USER, WITHOUT_TABLES, root
from tests.touched_tables import add_columns

__all__ = ["root"]  # a fixture, found by its name

READING = {command: rest for command, rest in COMMANDS.items() if not command.startswith((*WITHOUT_TABLES, "tables"))}
MORE = {
    "quotas export": (),
    "status": (),
    f"throttles explain {USER} {CLIENT}": (),
    f"throttles explain {USER} {CLIENT} -o json": (),
    "throttles list -o json": (),
    "throttles verify": SPAN,
}

OF_NOW = ("status", "throttles list", "throttles explain")
"""They show how long ago something was."""


@pytest.fixture(scope="module")
def stored(root: str, store: ObjectStore) -> str:
    """The same tables in a store."""
    shutil.copytree(root, store.folder / BUCKET / "commands", ignore=shutil.ignore_patterns("*.lock", "*.pid"))
    return "s3://kquota/commands"


@pytest.fixture(scope="module")
def touched(root: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same tables, after others have added columns to all of them."""
    folder = tmp_path_factory.mktemp("touched") / "tables"
    shutil.copytree(root, folder)
    for name in TABLES:
        add_columns(str(folder / name))
    return str(folder)


# An added column is a commit in the history.
ASKED = [
    *(("stored", command) for command in (*READING, *MORE)),
    *(("touched", command) for command in (*READING, *MORE) if command != "quotas history"),
]


@pytest.mark.parametrize(("place", "command"), ASKED)
def test_the_answer_is_that_of_the_same_tables_on_a_disk(
    place: str, command: str, root: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = request.getfixturevalue(place)
    if place == "stored":
        for name, value in request.getfixturevalue("store").environment.items():
            monkeypatch.setenv(name, value)
    candidate = str(Path(root) / "candidate.yaml")
    rest = [candidate if word == "CANDIDATE" else word for word in {**READING, **MORE}[command]]
    on_disk, found = (kquota(*command.split(), *rest, "--tables", tables) for tables in (root, other))
    assert found.exit_code == on_disk.exit_code, found.stderr
    shown = [answer.stdout.replace(other, root) for answer in (found, on_disk)]
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
