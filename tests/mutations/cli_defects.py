"""Defects of the command line, of what-if, of the story of a decision, and of observe."""

from typing import Final

from tests.mutations.planting import Defect

_EDITS: Final = "tests/pipeline/cli/test_quota_edits.py"
_OUTPUT: Final = "tests/pipeline/cli/test_output.py"
_EXPLAIN: Final = "tests/pipeline/cli/test_throttles_explain.py"
_WHAT_IF: Final = "tests/pipeline/replay/test_what_if.py"
_FINDINGS: Final = "tests/pipeline/observe/test_findings.py"

DEFECTS: Final = (
    Defect(
        "an empty name, as of a variable that is not set, is taken for the default",
        "refuse_empty",
        "lambda original, *_: None",
        f"{_EDITS}::test_an_empty_name_is_refused_because_an_unset_variable_makes_one",
    ),
    Defect(
        "a user alone finds the quotas of its pairs",
        "EntityFilter.matches",
        ("else not row[column]", "else True"),
        _EDITS,
    ),
    Defect(
        "of mistakes in the flags of an edit only the first one is shown",
        "pipeline.tables:edit_refused",
        "lambda original, mistakes, *a: original(mistakes[:1], *a)",
        f"{_EDITS}::test_all_mistakes_of_the_flags_come_at_once",
    ),
    Defect(
        "a double prints as in Python, not as in Java",
        "java_double",
        "lambda original, value: repr(value)",
        _EDITS,
    ),
    Defect(
        "columns disappear from a table without a word",
        "_print_table",
        ("if dropped:", "if False:"),
        _OUTPUT,
    ),
    Defect(
        "JSON of programs has what is made for people",
        "print_rows",
        "lambda original, rows, *a, shown=None, **k: original([shown(r) for r in rows] if shown else rows, *a, **k)",
        _OUTPUT,
    ),
    Defect(
        "a format that is not known is refused when all work is done",
        "format_option",
        ("if output not in known:", "if False:"),
        f"{_OUTPUT} {_EDITS}::test_an_unknown_format_is_refused_before_anything_is_done",
    ),
    Defect(
        "a command that is shown does not find the tables it is about",
        "pipeline.command_line:command_text",
        ('" ".join([*settings, *map', '" ".join([*map'),
        "tests/pipeline/test_command_line.py",
    ),
    Defect(
        "an argument with a space or a quote falls apart in a command that is shown",
        "pipeline.command_line:command_text",
        ("*map(shlex.quote, (*program, *arguments))", "*program, *arguments"),
        "tests/pipeline/test_command_line.py",
    ),
    Defect(
        "the figures that explain X do not give X",
        "computed_time",
        ("range(1, _MOST_DECIMALS + 1)", "range(1, 2)"),
        _EXPLAIN,
    ),
    Defect(
        "a client that kquota holds is listed once more as one of its brokers",
        "all_holds",
        ("if not held.by(user, client_id)", "if True"),
        "tests/pipeline/cli/test_throttles.py",
    ),
    Defect(
        "a throttle that lapsed before its release is said to have ended with it",
        "free_since_ms",
        ("min([*ends[-1:], *released_ms], default=None)", "max([*ends[-1:], *released_ms], default=None)"),
        _EXPLAIN,
    ),
    Defect(
        "a cap is explained where nothing was capped",
        "_facts",
        ("if rest_ms:", "if True:"),
        _EXPLAIN,
    ),
    Defect(
        "a release above its bound does not say why it is right",
        "_why_released",
        ("if 0 < owed_ms <= min_hold_ms:", "if False:"),
        _EXPLAIN,
    ),
    Defect(
        "what-if looks at the quotas of now, not of then",
        "Timeline.at",
        ("self.snapshots[max(bisect_right(self.from_ms, instant_ms) - 1, 0)]", "self.snapshots[-1]"),
        _WHAT_IF,
    ),
    Defect(
        "a what-if begins with full buckets and empty rates",
        "warm_up_ms",
        "lambda original, settings: 0",
        f"{_WHAT_IF} tests/pipeline/replay/test_parts.py",
    ),
    Defect(
        "a what-if is said to cover time of which there is no usage",
        "Coverage.of",
        ("start_ms = min(max(since_ms, epoch.first_ms), until_ms)", "start_ms = since_ms"),
        "tests/pipeline/replay/test_coverage.py",
    ),
    Defect(
        "observe compares a client's use on one broker with its quota, not on all",
        "_over_quota",
        ("sums.sum(axis=1)", "sums.max(axis=1)"),
        _FINDINGS,
    ),
    Defect(
        "JSON has characters that a terminal obeys",
        "pipeline.documents:_escaped",
        "lambda original, text, *_: text",
        _OUTPUT,
    ),
)
