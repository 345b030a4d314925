"""What can go wrong with a meter.

PipelineError
├── RequestLogMissing  there is no request log to follow
├── MeterStateDamaged  the state file of an earlier release can not be used
├── MeterMarkDamaged   the committed place in the log can not be used
├── MeterFenced        a second meter of the same broker has taken over
└── UsageNotStored     the meter ended with events that could not be stored
"""

import shlex
from pathlib import Path

from pipeline.errors import PipelineError


class RequestLogMissing(PipelineError):
    """The folder of the request log is not there, or the log cannot be read.

    Attributes:
        path: The log asked for.
    """

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        super().__init__(
            f"request log {path} {reason}",
            "name the file that logger kafka.request.logger of the broker writes at DEBUG",
        )


class MeterStateDamaged(PipelineError):
    """The state file is not one that a meter has written, so the place in the log is not known.

    Attributes:
        path: The state file.
        reason: What is wrong with it.
    """

    exit_code = 5

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            f"'--state-file' must name a state that a meter has written; got {path}: {reason}",
            f"rm {shlex.quote(str(path))}, then start with --from-beginning, which reports the whole log again, or "
            "without, which leaves out what was logged until now",
        )


class MeterMarkDamaged(PipelineError):
    """The committed offset is not one that a meter has written, so the place in the log is not known.

    Attributes:
        group: Whose offset it is.
        reason: What is wrong with its metadata.
    """

    exit_code = 5

    def __init__(self, group: str, marker_topic: str, bootstrap_servers: str, reason: str) -> None:
        self.group = group
        self.reason = reason
        super().__init__(
            f"the offset of group '{group}' on {marker_topic} must have the metadata that a meter has written; got "
            f"one that nobody can go on from: {reason}",
            f"kafka-consumer-groups --bootstrap-server {bootstrap_servers} --delete-offsets --group {group} --topic "
            f"{marker_topic}, then start with --from-beginning, which reports the whole log again, or without, which "
            "leaves out what was logged until now",
        )


class MeterFenced(PipelineError):
    """A second meter of the same broker has taken over. What this one has not stored, the other one does.

    Attributes:
        broker_id: The broker.
    """

    exit_code = 4

    def __init__(self, broker_id: str) -> None:
        self.broker_id = broker_id
        super().__init__(
            f"'--broker-id' must have one running meter; got a second one for {broker_id!r}, which has fenced this one "
            "and goes on where it stopped",
            "stop one of the two, or give each the id of its own broker",
        )


class UsageNotStored(PipelineError):
    """The meter ended with events that could not be stored.

    Attributes:
        destination: Topic and address.
        events: How many are left.
    """

    exit_code = 6

    def __init__(self, destination: str, events: int) -> None:
        self.destination = destination
        self.events = events
        super().__init__(
            f"{events:,} usage events could not be stored on {destination}",
            "start the meter again: it goes on at the first of them",
        )
