"""No test may fail because the machine is slow: rules for all files of tests/, checked in their source.

One Hypothesis profile, in conftest.py, without deadlines. Where a call takes a limit, that limit guards against waiting
for ever, and is generous. That no time is measured is a rule of tests/ruff.toml.
"""

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SHORTEST_LIMIT_SECONDS = 60
LONGEST_PAUSE_SECONDS = 0.1

# Programs that are run by hand and tell how long they took.
PROGRAMS = ("faults", "soak", "spark_cluster", "pipeline/stream/fuzz.py")
PROFILE_OPTIONS = {"deadline", "suppress_health_check", "derandomize", "database"}
WAITS = {"wait", "join", "result", "exception", "get", "communicate"}

Rule = Callable[[ast.AST], bool]


def sets_a_profile(node: ast.AST) -> bool:
    """A call of Hypothesis' settings with what the one profile decides, or one that makes or takes a profile."""
    if not isinstance(node, ast.Call):
        return False
    name = _name(node.func)
    if name in {"register_profile", "load_profile"}:
        return True
    return name == "settings" and any(keyword.arg in PROFILE_OPTIONS for keyword in node.keywords)


def has_a_short_limit(node: ast.AST) -> bool:
    """`timeout=` below a minute, or `x.wait(10)` and the like; below a tenth of a second it is a pause."""
    if not isinstance(node, ast.Call):
        return False
    limits = [keyword.value for keyword in node.keywords if keyword.arg in {"timeout", "patience_seconds"}]
    if isinstance(node.func, ast.Attribute) and (node.func.attr in WAITS or _is_asyncio_timeout(node.func)):
        limits += node.args[:1]
    return any(LONGEST_PAUSE_SECONDS < _number(limit) < SHORTEST_LIMIT_SECONDS for limit in limits)


def _is_asyncio_timeout(function: ast.Attribute) -> bool:
    return function.attr == "timeout" and isinstance(function.value, ast.Name) and function.value.id == "asyncio"


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _number(node: ast.AST) -> float:
    is_number = isinstance(node, ast.Constant) and type(node.value) in {int, float}
    return float(ast.literal_eval(node)) if is_number else 0.0


def places(rule: Rule, *without: str) -> Iterator[str]:
    """Where a rule is broken, `file:line`."""
    for name, nodes in files().items():
        if not name.startswith(without):
            yield from (f"tests/{name}:{line}" for line in lines_of(rule, nodes))


@cache
def files() -> dict[str, list[ast.AST]]:
    """The syntax of every file, by its name."""
    return {
        path.relative_to(TESTS).as_posix(): list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        for path in sorted(TESTS.rglob("*.py"))
    }


def broken_at(rule: Rule, source: str) -> list[int]:
    """Its lines that break a rule."""
    return lines_of(rule, ast.walk(ast.parse(source)))


def lines_of(rule: Rule, nodes: Iterable[ast.AST]) -> list[int]:
    return [node.lineno for node in nodes if rule(node) and isinstance(node, ast.expr | ast.stmt)]


def test_no_test_has_a_hypothesis_deadline_or_a_profile_of_its_own() -> None:
    assert list(places(sets_a_profile, "conftest.py")) == []


def test_no_wait_gives_up_within_a_minute() -> None:
    assert list(places(has_a_short_limit, *PROGRAMS)) == []


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (sets_a_profile, "@settings(max_examples=3, deadline=200)\ndef test(): ..."),
        (sets_a_profile, "Machine.TestCase.settings = hypothesis.settings(suppress_health_check=[])"),
        (sets_a_profile, "settings.register_profile('fast')"),
        (sets_a_profile, "load_profile('fast')"),
        (has_a_short_limit, "subprocess.run(command, timeout=30)"),
        (has_a_short_limit, "assert entered.wait(0.5)"),
        (has_a_short_limit, "future.result(10)"),
        (has_a_short_limit, "asyncio.timeout(10)"),
    ],
)
def test_what_breaks_a_rule_is_found(rule: Rule, source: str) -> None:
    assert broken_at(rule, source)


@pytest.mark.parametrize(
    "source",
    [
        "settings(max_examples=3, stateful_step_count=9)",
        "until = time.time_ns() // 1_000_000 + 5",
        "subprocess.run(command, timeout=PATIENCE_SECONDS)",
        "thread.join()\nentered.wait(60)\n', '.join('ab')\nrow.get('name')",
        "asyncio.timeout(120)",
    ],
)
def test_what_keeps_the_rules_is_left_alone(source: str) -> None:
    assert not any(broken_at(rule, source) for rule in (sets_a_profile, has_a_short_limit))
