"""The errors of the pipeline: each prints as one line, with what happened, the facts, and how to fix it.

An error has a class of its own only where a caller catches it by name. All others are raised as one of the first
classes here, which differ in the exit code that the command ends with: 1 failed, 2 wrong usage, 3 not found,
4 conflict, 5 refused by validation, 6 an outside service does not answer.
"""

from collections.abc import Sequence


class PipelineError(Exception):
    """Root of all errors of the pipeline, which an operator can correct: what is wrong where, and one clause of fix."""

    exit_code: int = 1

    def __init__(self, message: str, fix: str, exit_code: int | None = None) -> None:
        self.message = message
        self.fix = fix
        self.exit_code = self.exit_code if exit_code is None else exit_code
        super().__init__(message, fix)

    def __str__(self) -> str:
        """One printable line: the message, then the fix."""
        return printable(" ".join(f"{self.message}. Fix: {self.fix}".split()))


class UsageError(PipelineError):
    """What was given on the command line or in settings cannot be used so."""

    exit_code = 2


class NotFound(PipelineError):
    """What was asked for does not exist."""

    exit_code = 3


class Conflict(PipelineError):
    """Another process has it, or has changed it."""

    exit_code = 4


class Refused(PipelineError):
    """Validation refuses it."""

    exit_code = 5


class Unreachable(PipelineError):
    """A cluster, a store or another service does not answer."""

    exit_code = 6


class TableMissing(PipelineError):
    """An address has no table, which is wrong usage (exit code 2), or its table lacks a version (3)."""


class ClusterUnreachable(Unreachable):
    """No broker answers at the address."""

    def __init__(self, bootstrap_servers: str, cause: str, fix: str) -> None:
        super().__init__(f"no Kafka broker answers at {bootstrap_servers}: {cause}", fix)


class ClientPropertiesInvalid(UsageError):
    """Client properties that cannot be used, with one text per mistake."""

    def __init__(self, source: str, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__(f"{source}: {'; '.join(mistakes)}", f"correct these entries in {source}")


class TopicNotCreated(PipelineError):
    """The cluster refused to create a topic."""

    def __init__(self, topic: str, cause: str) -> None:
        self.topic = topic
        fix = "set --replication-factor to what the cluster can hold"
        super().__init__(f"topic '{topic}' was not created: {cause}", fix)


class TransactionUndecided(PipelineError):
    """A Kafka transaction failed, or its outcome is not known; the marker then shows whether it was committed."""

    def __init__(self, detail: str) -> None:
        fix = "nothing needs doing: it is tried again when the broker answers"
        super().__init__(f"Kafka transaction failed: {detail}", fix)


class TransactionFenced(Conflict):
    """Another writer of the same transactional id has taken over, or a transaction was open for too long."""

    def __init__(self, identity: str) -> None:
        taken = f"another writer has taken over transactional id '{identity}'"
        fix = "stop one of the two writers, or give it another name and tables of its own"
        super().__init__(f"{taken}, or a transaction was open for longer than its time-out", fix)


class MessageTooLarge(PipelineError):
    """A message of a transaction is larger than its topic, or the producer, takes."""

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(f"a message is larger than its topic takes: {detail}", "raise max.message.bytes of the topic")


class MasterUnreachable(Unreachable):
    """No master of the Spark cluster answers."""

    def __init__(self, master: str) -> None:
        fix = "start it, or name the address that its log gives (Starting Spark master at …) in 'spark.master'"
        super().__init__(f"no Spark master at {master} has taken this application within a minute", fix)


class QueryFailed(PipelineError):
    """The streaming query ended by itself. The next query repeats what this one had not committed."""

    def __init__(self, reason: str, fix: str | None = None) -> None:
        self.reason = reason
        fix = fix or "see the log above for the cause; a restart continues where it ended"
        super().__init__(f"streaming query failed: {reason}", fix)


def first_line(failure: BaseException) -> str:
    """The first line of an exception's text, without a full stop; the name of its class if it has no text.

    py4j begins the text of a Java exception with a line about the call, which has nothing about the cause. The
    exception itself is on the next line, after a colon.
    """
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    first = lines[1].lstrip(": ") if lines[1:] and lines[1].startswith(":") else "".join(lines[:1])
    return printable(first).rstrip(".") or type(failure).__name__


def printable(text: str, encoding: str = "utf-8") -> str:
    r"""The text with every character escaped that a terminal or a log would not show as it is.

    Names of users and client-ids come from clients. A line end, an escape sequence or a mark that reverses the text
    could forge a line or hide one. `pipeline.documents` escapes what programs read, so that they get the same names.

    >>> print(printable("etl\n\x1b[2J"))
    etl\n\x1b[2J
    """
    if is_shown(text, encoding):
        return text
    return "".join(sign if is_shown(sign, encoding) else sign.encode("unicode_escape").decode("ascii") for sign in text)


def is_shown(text: str, encoding: str) -> bool:
    """Whether an output of this encoding shows the text as it is."""
    if not text.isprintable():
        return False
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
