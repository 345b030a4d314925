"""Errors of replays.

PipelineError
└── replay
    ├── UsageNotKept       no usage is stored for the range or the decision
    ├── BatchNotRecorded   the batch of a decision is not in `batches`
    ├── SampleTooFine      rows of one second cannot fill sample windows that are no whole seconds
    ├── UsageOutOfReach    a cluster's executors do not find the table
    └── BadFailCondition   `--fail-if` is not a comparison of a known metric with a number
"""

from pipeline.errors import PipelineError


class UsageNotKept(PipelineError):
    """The usage that a replay needs was deleted by retention, or was never stored.

    Attributes:
        uri: The table that was read.
        decision_id: The decision whose usage is missing; None if it is a range.
    """

    exit_code = 3

    def __init__(self, uri: str, decision_id: str | None = None) -> None:
        self.uri = uri
        self.decision_id = decision_id
        wanted = f"decision {decision_id}" if decision_id else "any instant of this range"
        super().__init__(
            f"no usage is kept for {wanted} in {uri}",
            "ask for another time: `usage` is kept for `tables.usage_retention_ms`, and usage_by_second is written "
            "some minutes after it (what-if reads the exact batches with --from usage)",
        )


class BatchNotRecorded(PipelineError):
    """The batch of a decision has no row in `batches`, so its engine settings are not known.

    Attributes:
        query_id: Of the decision.
        batch_id: Of the decision.
    """

    def __init__(self, query_id: str, batch_id: int) -> None:
        self.query_id = query_id
        self.batch_id = batch_id
        super().__init__(
            f"batch {batch_id} of query {query_id} is not in `batches`",
            "if the job runs, repeat this in a second: the row of a batch is written after its decisions",
        )


class SampleTooFine(PipelineError):
    """The engine's sample windows are not whole seconds, but the rows of the roll-up are.

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


class UsageOutOfReach(PipelineError):
    """The executors do not find the table that this machine has.

    Attributes:
        uri: The table.
        cause: In their words.
    """

    exit_code = 6

    def __init__(self, master: str, uri: str, cause: str) -> None:
        self.uri = uri
        self.cause = cause
        super().__init__(
            f"the executors of {master} must reach {uri}; got {cause}",
            "put the tables into a store, or into a folder that every machine mounts under the same path; or leave out "
            "--on spark",
        )


class BadFailCondition(PipelineError):
    """An expression of `--fail-if` is not a comparison of a known metric with a number.

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
