"""A fix is pasted into the shell that has shown it, and answers about the same tables."""

import subprocess
from pathlib import Path

import pytest

from tests.pipeline.cli.running import kquota, new_tables


@pytest.mark.parametrize("given_by", ["option", "file"])
def test_a_remedy_finds_the_tables_that_the_command_was_given(given_by: str, tmp_path: Path) -> None:
    root = new_tables(tmp_path / "the tables")
    settings = tmp_path / "my settings.toml"
    settings.write_text(f'[tables]\nroot = "{root}"\n')
    where = ("--tables", root) if given_by == "option" else ("--config", str(settings))
    kquota("quotas", "alter", "--user", "alice", "--add-config", "producer_byte_rate=1", *where)
    refused = kquota("quotas", "delete", "--user", "nobody", *where)
    fix = refused.stderr.strip().partition("see which exist: ")[2]
    assert fix, refused.stderr
    shown = subprocess.run(["/bin/sh", "-c", fix], capture_output=True, text=True, check=False)
    assert (shown.returncode, "alice" in shown.stdout) == (0, True), shown.stderr


def test_a_remedy_does_not_name_the_tables_of_another_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    new_tables(".kquota/tables")
    other = new_tables(tmp_path / "other")
    assert other in kquota("quotas", "delete", "--user", "nobody", "--tables", other).stderr
    assert "KQUOTA" not in kquota("quotas", "delete", "--user", "nobody").stderr


def test_what_is_wrong_in_client_properties_is_told_with_the_name_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=127.0.0.1:1\nsecurity.protocol=NOPE\n")
    answer = kquota("topics", "check", "--command-config", str(file))
    assert answer.exit_code == 2
    assert answer.stderr.startswith(f"kquota: {file}: 'security.protocol' 'NOPE' is none of ")
