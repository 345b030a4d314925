"""How commands are read from a block, typed, compared and written back."""

from pathlib import Path

import pytest

from tests.pages.shell import Answer, Shell
from tests.pages.transcript import Player, exactly, excerpt, in_shape

PAGE = """# Page

```console pure
$ first 'a
$ b'
old
$ second \\
    --long
```

<!-- happens: rain -->

* ```sh pure
  # a comment
  third
  ```
"""


class Typist:
    """Answers each command with the same text, and notes what happens."""

    def __init__(self, text: str = "new\n", exit_code: int = 0) -> None:
        self.answer = Answer(text, exit_code)
        self.notes: list[str] = []

    def run(self, command: str) -> Answer:
        self.notes.append(command)
        return self.answer

    def happens(self, event: str) -> None:
        self.notes.append(f"<{event}>")


def player(typist: Typist, **names: str) -> Player:
    return Player(typist.run, names, typist.happens)


def test_commands_are_typed_in_the_order_of_the_page_with_its_events_between() -> None:
    typist = Typist()
    player(typist).play(PAGE, "pure")
    assert typist.notes == ["first 'a", "b'", "second \\\n    --long", "<rain>", "third"]


def test_what_was_printed_takes_the_place_of_what_the_page_showed() -> None:
    played = player(Typist()).play(PAGE, "pure")
    assert "\n".join(played.lines) + "\n" == PAGE.replace("old\n", "new\n").replace("'a\n", "'a\nnew\n").replace(
        "--long\n", "--long\nnew\n"
    )
    assert len(played.differences) == 3
    assert player(Typist()).play("\n".join(played.lines), "pure").differences == []


def test_a_page_without_blocks_of_a_kind_waits_for_no_event() -> None:
    typist = Typist()
    assert player(typist).play(PAGE, "demo").differences == []
    assert typist.notes == []


def test_a_command_of_a_script_must_succeed() -> None:
    assert player(Typist("", 1)).play("```sh demo\nfails\n```\n", "demo").differences == [
        "line 2: $ fails\nended with 1:\n"
    ]


def test_names_of_the_page_stand_for_those_of_here_and_back() -> None:
    typist = Typist("at here:1, not there:1\n")
    played = player(typist, **{"broker:9092": "here:1"}).play("```console pure\n$ ask broker:9092\nno\n```\n", "pure")
    assert typist.notes == ["ask here:1"]
    assert played.lines[2] == "at broker:9092, not there:1"


def test_lines_that_are_left_out_are_not_compared_and_stay_left_out() -> None:
    page = "```console pure\n$ all\na 1\n…\nz 9\n```"
    played = player(Typist("a 2\nb 3\nc 4\nz 5\n")).play(page, "pure")
    assert played.differences == []
    assert played.lines == ["```console pure", "$ all", "a 2", "…", "z 5", "```"]
    assert player(Typist("a 2\nb 3\nc 4\ny 5\n")).play(page, "pure").differences


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("at 12:00:01.5  O 3.1 kB/s", "at 9:15:00  O 20.25 kB/s"),
        ("decision 388fb1298c4d3550   x", "decision 79cc1637 x"),
        ("│████ 600.0", "│▊ 1"),
    ],
)
def test_numbers_ids_and_widths_may_differ(shown: str, printed: str) -> None:
    assert in_shape([shown], [printed]) == ""
    assert exactly([shown], [printed]) != ""


def test_words_and_the_number_of_lines_may_not() -> None:
    assert in_shape(["quotas v1"], ["quota v1"])
    assert in_shape(["a 1"], ["a 1", "a 2"])


def test_an_excerpt_takes_for_each_line_the_first_of_its_shape() -> None:
    printed = ["start 1", "throttle a 5", "release a 6", "throttle a 7", "end"]
    assert excerpt(["throttle a 1", "throttle a 2", "…", "end"], printed) == [
        "throttle a 5",
        "throttle a 7",
        "…",
        "end",
    ]
    assert excerpt(["renew a 1", "end"], printed) == ["end"]


def test_a_shell_remembers_variables_folders_and_exit_codes(tmp_path: Path) -> None:
    with Shell(tmp_path, {"PATH": "/usr/bin:/bin"}) as shell:
        assert shell.run("mkdir below; cd below; here=1; export there=2") == Answer("", 0)
        assert shell.run('printf "$here$there ${PWD##*/}"') == Answer("12 below", 0)
        assert shell.run("echo out; echo err >&2; false") == Answer("out\nerr\n", 1)
        assert shell.run("echo $?") == Answer("1\n", 0)
        assert shell.run("cat") == Answer("", 0)


def test_a_command_that_ends_the_shell_is_told(tmp_path: Path) -> None:
    with (
        Shell(tmp_path, {"PATH": "/usr/bin:/bin"}) as shell,
        pytest.raises(AssertionError, match="in the command: exit"),
    ):
        shell.run("exit 3")
