"""Errors of replays.

PipelineError
└── replay
    ├── NothingKept        no usage is kept for what is asked
    ├── BatchNotRecorded   a decision's batch is not in `batches`
    ├── SampleTooFine      rows of a second can not fill windows shorter than a second
    └── BadBudget          --fail-if that can not be read
"""

from pipeline.errors import PipelineError


class NothingKept(PipelineError):
    """The usage that a replay needs is no longer there, or never was.

    Attributes:
        uri: Where it was looked for.
        decision_id: The decision it was needed for; None for a range.
    """

    exit_code = 3

    def __init__(self, uri: str, decision_id: str | None = None) -> None:
        self.uri = uri
        self.decision_id = decision_id
        wanted = f"decision {decision_id}" if decision_id else "any instant of this range"
        super().__init__(
            f"no usage is kept for {wanted} in {uri}",
            "ask for another time: `usage` is kept for `tables.usage_retention_ms`, and usage_by_second follows it by "
            "some minutes (what-if reads the exact batches with --from usage)",
        )


class BatchNotRecorded(PipelineError):
    """A decision's batch has no row in `batches`, so its engine settings are not known.

    Attributes:
        query_id: Of the decision.
        batch_id: Of the decision.
    """

    def __init__(self, query_id: str, batch_id: int) -> None:
        self.query_id = query_id
        self.batch_id = batch_id
        super().__init__(
            f"batch {batch_id} of query {query_id} is not in `batches`",
            "repeat this in a second if the job runs: the row follows its decisions",
        )


class SampleTooFine(PipelineError):
    """The engine's sample windows are no whole number of seconds, the roll-up's rows are.

    Attributes:
        sample_window_ms: The engine's.
    """

    exit_code = 2

    def __init__(self, sample_window_ms: int) -> None:
        self.sample_window_ms = sample_window_ms
        super().__init__(
            f"'engine.sample_window_ms' must be whole seconds to replay usage_by_second; got {sample_window_ms}",
            "replay the exact batches: --from usage",
        )


class BadBudget(PipelineError):
    """An expression of `--fail-if` that can not be read.

    Attributes:
        given: The expression.
    """

    exit_code = 2

    def __init__(self, given: str, metrics: tuple[str, ...]) -> None:
        self.given = given
        super().__init__(
            f"'--fail-if' must be a metric, one of > >= < <= == !=, and a number; got {given}",
            f"metrics are {', '.join(metrics)}",
        )
