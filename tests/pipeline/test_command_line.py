"""Commands that kquota prints run as they are printed: in that shell, in that folder, on the same tables."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import command_line
from pipeline.command_line import carry, command_text, extra_text

MODULE = "pipeline.cli.main"
ECHO = '#!/bin/sh\necho "$0"; echo "$KQUOTA_CONFIG,$KQUOTA_TABLES__ROOT,$KQUOTA_COMMAND_CONFIG"; printf "%s\\n" "$@"\n'


@pytest.fixture(autouse=True)
def no_variable_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (command_line.CONFIG, command_line.COMMAND_CONFIG, command_line.TABLES_ROOT):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A console script that prints what it is given; this process believes that it was started by it."""
    script = tmp_path / "an environment" / "bin" / "kquota"
    script.parent.mkdir(parents=True)
    script.write_text(ECHO)
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return script


def pasted(command: str) -> list[str]:
    """What the script prints when a shell in this folder runs the command: its name, its variables, its arguments."""
    answer = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)
    return answer.stdout.splitlines()


@pytest.mark.parametrize(
    ("folder", "search_path", "called"),
    [
        (".", "{root}/an environment/bin", "kquota"),
        (".", "{root}/other", "an environment/bin/kquota"),
        (".", "", "an environment/bin/kquota"),
        ("an environment/bin", "", "./kquota"),
        ("other", "", "{root}/an environment/bin/kquota"),
    ],
    ids=["on the path", "another is on the path", "below the folder", "in the folder", "elsewhere"],
)
def test_a_script_is_called_by_what_this_folder_and_shell_find(
    folder: str, search_path: str, called: str, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other" / "kquota"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{search_path.format(root=tmp_path)}:/usr/bin:/bin".lstrip(":"))
    monkeypatch.chdir(tmp_path / folder)
    assert shlex.split(command_text("mode")) == [called.format(root=tmp_path), "mode"]
    assert pasted(command_text("mode"))[2:] == ["mode"]


@pytest.mark.parametrize(
    ("python", "called"),
    [("an environment/bin/python", ["an environment/bin/kquota"]), ("bin/python", ["bin/python", "-m", MODULE])],
)
@pytest.mark.usefixtures("script")
def test_without_the_script_its_neighbour_or_the_module_is_run(
    python: str, called: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["main.py"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / python))
    assert shlex.split(command_text("mode")) == [*called, "mode"]


@pytest.mark.parametrize("argument", ["a b", "it's", "$HOME", "a\nb", "*", "", "é;ls"])
def test_every_argument_arrives_as_it_is(argument: str, script: Path) -> None:
    assert "\n".join(pasted(command_text("quotas", argument))[2:]) == f"quotas\n{argument}"


def test_the_settings_of_this_process_stand_in_front_unless_the_shell_has_them(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry(command_line.CONFIG, "my settings.toml")
    carry(command_line.TABLES_ROOT, "/data/tables")
    assert pasted(command_text("mode"))[1] == "my settings.toml,/data/tables,"
    monkeypatch.setenv(command_line.CONFIG, "my settings.toml")
    assert command_text("mode").startswith("KQUOTA_TABLES__ROOT=/data/tables ")
    monkeypatch.setenv(command_line.CONFIG, "another.toml")
    assert pasted(command_text("mode"))[1] == "my settings.toml,/data/tables,"


def test_only_what_a_command_needs_stands_in_front(script: Path) -> None:
    for variable in (command_line.CONFIG, command_line.COMMAND_CONFIG, command_line.TABLES_ROOT):
        carry(variable, variable.lower())
    assert pasted(command_text("topics", "create", about="cluster"))[1] == "kquota_config,,kquota_command_config"
    assert pasted(command_text("jars", "fetch", about="program"))[1] == ",,"
    assert pasted(command_text("tables", "create", "--tables", "x"))[1] == "kquota_config,,"


def test_an_extra_is_installed_by_the_pip_of_this_python_whatever_pip_the_shell_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "an environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(ECHO)
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.chdir(tmp_path)
    shown = pasted(extra_text("job"))
    assert (shown[0], shown[2:]) == ("an environment/bin/python", ["-m", "pip", "install", "kafka-quota-pipeline[job]"])
