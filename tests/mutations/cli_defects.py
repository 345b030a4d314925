"""Defects of the command line, of what-if, of the story of a decision, and of observe."""

from typing import Final

from tests.mutations.planting import Defect

_FLAGS: Final = "tests/pipeline/cli/test_entity_flags.py"
_EDITS: Final = "tests/pipeline/cli/test_quota_edits.py"
_OUTPUT: Final = "tests/pipeline/cli/test_output.py"
_LAYOUT: Final = "tests/pipeline/cli/test_table_layout.py"
_LINES: Final = "tests/pipeline/cli/test_kafka_lines.py"
_EXPLAIN: Final = "tests/pipeline/cli/test_throttles_explain.py"
_LIST: Final = "tests/pipeline/cli/test_throttles_list.py"
_WHAT_IF: Final = "tests/pipeline/replay/test_what_if.py"
_REPORT: Final = "tests/pipeline/replay/test_report.py"
_FINDINGS: Final = "tests/pipeline/observe/test_findings.py"
_OBSERVED: Final = "tests/pipeline/observe/test_lines.py"

DEFECTS: Final = (
    Defect(
        "an empty name, as of a variable that is not set, is taken for the default",
        "_refuse_empty",
        "lambda original, *_: None",
        f"{_EDITS}::test_an_empty_name_is_refused_because_an_unset_variable_makes_one",
    ),
    Defect(
        "a user alone finds the quotas of its pairs",
        "EntityFilter.matches",
        ("else not (row[column] and self.is_strict)", "else True"),
        _FLAGS,
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
        _LINES,
    ),
    Defect(
        "a mode that Kafka does not have comes before what it has",
        "described_line",
        ("{', '.join(values)}", "{', '.join(values[::-1])}"),
        _LINES,
    ),
    Defect(
        "a table is wider than the terminal",
        "_narrowed",
        ("_squeeze(columns, narrow, width)", "pass"),
        _LAYOUT,
    ),
    Defect(
        "columns disappear from a table without a word",
        "_print_table",
        ("if table.dropped:", "if False:"),
        _OUTPUT,
    ),
    Defect(
        "a cell is broken inside the parentheses of its size",
        "pipeline.cli:_joined",
        "lambda original, text: text",
        _LAYOUT,
    ),
    Defect(
        "the default entity is shortened like any name",
        "_SHORTEST_NAME",
        ("= 9", "= 4"),
        _LAYOUT,
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
        "a command that is shown names the kquota of another installation",
        "_program",
        ("if found is not None and Path(found).samefile(script):", "if found is not None:"),
        "tests/pipeline/test_command_line.py",
    ),
    Defect(
        "an argument with a space or a quote falls apart in a command that is shown",
        "pipeline.command_line:command_text",
        ("*map(shlex.quote, (*program, *arguments))", "*program, *arguments"),
        "tests/pipeline/test_command_line.py",
    ),
    Defect(
        "a watch shows the same list again and again",
        "changes",
        "lambda original, read, wait: iter([read(), read(), read()])",
        f"{_LIST}::test_a_watch_shows_what_has_changed_and_nothing_else",
    ),
    Defect(
        "the figures that explain X do not give X",
        "computed_time",
        ("range(1, _MOST_DECIMALS + 1)", "range(1, 2)"),
        _EXPLAIN,
    ),
    Defect(
        "a throttle that lapsed before its release is said to have ended with it",
        "free_since_ms",
        ("min([*ends[-1:], *released_ms], default=None)", "max([*ends[-1:], *released_ms], default=None)"),
        _EXPLAIN,
    ),
    Defect(
        "a cap is explained where nothing was capped",
        "pipeline.reports.story:_facts",
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
        "an edit that throttles a client anew is shown as no change",
        "ClientComparison.change",
        ("if bool(self.baseline.windows) != bool(self.candidate.windows):", "if False:"),
        _REPORT,
    ),
    Defect(
        "a budget of --fail-if that is just met fails",
        "_COMPARISONS",
        ('">": operator.gt', '">": operator.ge'),
        "tests/pipeline/replay/test_fail_if.py",
    ),
    Defect(
        "a what-if is said to cover time of which there is no usage",
        "Coverage.of",
        ("start_ms = min(max(since_ms, first_ms), until_ms)", "start_ms = since_ms"),
        "tests/pipeline/replay/test_coverage.py",
    ),
    Defect(
        "observe compares a client's use on one broker with its quota, not on all",
        "_over_quota",
        ("sums.sum(axis=1)", "sums.max(axis=1)"),
        _FINDINGS,
    ),
    Defect(
        "observe counts a held client's requests against its quota",
        "Observation._decide",
        ("sends = ~np.isin", "sends = np.ones(rows.num_rows, np.bool_) | np.isin"),
        _FINDINGS,
    ),
    Defect(
        "observe suggests a bound without room above what was used",
        "_no_quota",
        ("p99 * (1 + HEADROOM / 100)", "p99"),
        _FINDINGS,
    ),
    Defect(
        "a rate in observe is too low in the first seconds",
        "Observation.lines",
        ("np.maximum(newest - RATE_SECONDS + 1, np.array(self._first_seconds))", "newest - RATE_SECONDS + 1"),
        _OBSERVED,
    ),
    Defect(
        "a broker that reports late is shown with less in observe",
        "Observation.lines",
        ("np.maximum(np.array(self._newest_seconds), stale)", "np.full(len(self._newest_seconds), stale + 1)"),
        _OBSERVED,
    ),
)
