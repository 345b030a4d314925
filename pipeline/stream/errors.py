"""Errors of the Spark side.

PipelineError
└── stream
    ├── SparkConnectRefused  the session would run on a server, away from the driver's state
    ├── CheckpointUnfit      the checkpoint does not belong to the tables
    ├── CheckpointUnreadable the checkpoint's file system does not answer
    ├── UsageGone            messages were deleted before they were read
    ├── ExecutorPythonUnfit  the Python of a cluster's executors can not run this package
    ├── QueryFailed          the streaming query has ended by itself
    ├── ClockSetBack         the wall clock was set back while the query ran
    └── JvmEnded             Spark's JVM has ended before the job
"""

from collections.abc import Sequence
from typing import Final

from pipeline.command_line import command_text
from pipeline.errors import PipelineError

_NO_MEMORY: Final = 52


class SparkConnectRefused(PipelineError):
    """The session is, or would become, a Spark Connect session.

    Attributes:
        found_in: what asks for Spark Connect.
    """

    exit_code = 2

    def __init__(self, found_in: str) -> None:
        self.found_in = found_in
        super().__init__(
            f"'spark' must be a classic session, with the purgatory in its driver; got Spark Connect from {found_in}",
            "unset it, and name a master (local[*], spark://…) or use spark-submit",
        )


class ExecutorPythonUnfit(PipelineError):
    """The Python that the executors start lacks a package, has another version, or is not there.

    Attributes:
        python: As they were told to start it.
        cause: In their words.
    """

    exit_code = 6

    def __init__(self, master: str, python: str, cause: str, needed: tuple[str, ...]) -> None:
        self.python = python
        self.cause = cause
        super().__init__(
            f"the executors of {master} can not run this job's Python, '{python}': {cause}",
            f"give every worker that Python in the driver's version, with {', '.join(needed)} (the easiest is to "
            "install kafka-quota-pipeline for it), and name it in PYSPARK_PYTHON",
        )


class JvmEnded(PipelineError):
    """Spark's JVM has ended before the job. Nothing can be started again in this process.

    Attributes:
        exit_code_of_jvm: 52 is Spark's code for a lack of memory; a code below 0 is a signal.
    """

    def __init__(self, exit_code_of_jvm: int, driver_memory: str) -> None:
        self.exit_code_of_jvm = exit_code_of_jvm
        how, fix = f"exit code {exit_code_of_jvm}", "start the job again: it goes on where it was"
        if exit_code_of_jvm == _NO_MEMORY:
            how = f"too little memory, {driver_memory}"
            fix = f"give 'spark.driver_memory' more, or 'stream.max_offsets_per_trigger' less, and {fix}"
        super().__init__(f"Spark's JVM must outlive the job; got its end with {how}", fix)


class CheckpointUnfit(PipelineError):
    """The checkpoint is not the one that these tables were written with.

    Attributes:
        checkpoint: The checkpoint's folder.
    """

    exit_code = 5

    def __init__(self, checkpoint: str, wanted_and_got: str) -> None:
        self.checkpoint = checkpoint
        super().__init__(
            f"'checkpoint' {checkpoint} must {wanted_and_got}",
            "give the job's own one with --checkpoint, or delete this one: the job then begins where its tables end",
        )


class CheckpointUnreadable(PipelineError):
    """The checkpoint's file system does not answer, or Hadoop has no class for its scheme.

    Attributes:
        checkpoint: Its URI.
    """

    exit_code = 6

    def __init__(self, checkpoint: str, reason: str) -> None:
        self.checkpoint = checkpoint
        super().__init__(
            f"'checkpoint' {checkpoint} must be readable; got {reason}",
            "check the store's address, credentials and jars in 'spark.conf', or name another one with --checkpoint",
        )


class UsageGone(PipelineError):
    """The messages that the next batch begins with are no longer on the usage topic.

    Attributes:
        topic: The usage topic.
        gaps: What is missing, one text per partition.
        checkpoint: The checkpoint that names them.
    """

    exit_code = 5

    def __init__(self, topic: str, gaps: Sequence[str], checkpoint: str) -> None:
        self.topic = topic
        self.gaps = tuple(gaps)
        self.checkpoint = checkpoint
        super().__init__(
            f"topic '{topic}' must have all usage since the last batch; got: {'; '.join(gaps)}",
            f"delete the checkpoint {checkpoint}: the job then continues with what is left, without the missing usage",
        )


class QueryFailed(PipelineError):
    """The streaming query has ended by itself. The next query repeats what this one had not committed.

    Attributes:
        reason: Why, in one line.
    """

    def __init__(self, reason: str, fix: str | None = None) -> None:
        self.reason = reason
        super().__init__(
            f"streaming query failed: {reason}",
            fix or "see the log above for the cause; a restart continues where it ended",
        )


class ClockSetBack(PipelineError):
    """The wall clock was set back while the query ran: Spark would begin no batch until it shows the old time again.

    Attributes:
        by_ms: How far.
    """

    def __init__(self, by_ms: int) -> None:
        self.by_ms = by_ms
        super().__init__(
            f"the wall clock was set back by {by_ms / 1000:.1f} s, for which Spark would begin no batch",
            "nothing needs doing: the query is started again",
        )


class MasterUnreachable(PipelineError):
    """No master of the Spark cluster answers.

    Attributes:
        master: Its address.
        cause: What the network answered.
    """

    exit_code = 6

    def __init__(self, master: str, cause: str) -> None:
        self.master = master
        self.cause = cause
        super().__init__(
            f"no Spark master answers at {master}: {cause}",
            "start it, or name the address that its log gives (Starting Spark master at …) in 'spark.master'",
        )


class ExecutorsMissing(PipelineError):
    """The Spark cluster gives this application no executor. Nothing is raised for it: the job waits, and says so.

    Attributes:
        master: Its address.
    """

    exit_code = 6

    def __init__(self, master: str, wanted: str, waited_seconds: float) -> None:
        self.master = master
        super().__init__(
            f"'spark.master' {master} must give an executor ({wanted}); got none for {waited_seconds:.0f} s, so no "
            f"usage is read",
            "see on the master's page whether a worker is alive with that much free; start one, end another "
            "application, limit it with 'spark.cores.max', or ask for less in 'spark.conf'; a master that was started "
            "anew does not know this job: start the job again",
        )


class ConnectorsMissing(PipelineError):
    """spark-submit has started a JVM without the Kafka connector."""

    exit_code = 2

    def __init__(self) -> None:
        super().__init__(
            "spark-submit must be given the connectors of Kafka and Delta; got a class path without them",
            f'submit with --jars "$({command_text("jars", "paths", about="program")})"',
        )


class StateOnOneNode(PipelineError):
    """The driver runs on a node that the cluster chooses, and its state would stay there.

    Attributes:
        setting: Which setting names the place.
        place: The place.
    """

    exit_code = 2

    def __init__(self, setting: str, place: str) -> None:
        self.setting = setting
        self.place = place
        super().__init__(
            f"'{setting}' must be in a store that every node reaches, because the cluster chooses the driver's node "
            f"(deploy mode cluster); got {place}, which is on one node's disk",
            "name a store (s3://…, abfss://…), list the folder in 'spark.shared_folders' if every node mounts it, or "
            "submit with --deploy-mode client",
        )


class SparkGivenUp(PipelineError):
    """Nobody waits for the session any more."""

    def __init__(self) -> None:
        super().__init__("the Spark session must be wanted until it is there; got the end of the job", "start it again")
