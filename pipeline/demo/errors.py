"""What can be wrong with the demo's broker and folder.

PipelineError
├── PortBusy             a port that was asked for is taken
├── BrokerAlreadyRunning the data directory is in use
├── BrokerStartFailed    the broker ended, or did not answer in time
├── NotADemoFolder       the folder has content that no demo made
├── OtherBrokerCount     the demo in the folder has another number of brokers
└── DemoIsRunning        another demo runs in the folder
"""

from pathlib import Path
from shlex import quote

from pipeline.command_line import command_text
from pipeline.errors import PipelineError


class PortBusy(PipelineError):
    """A port that was asked for is taken.

    Attributes:
        listener: which listener wanted it.
        port: the port.
    """

    exit_code = 4

    def __init__(self, listener: str, port: int) -> None:
        self.listener = listener
        self.port = port
        super().__init__(
            f"port {port} of listener '{listener}' on 127.0.0.1 is in use",
            f"stop what listens there (`ss -ltnp 'sport = :{port}'` names it), or choose another port or none",
        )


class BrokerAlreadyRunning(PipelineError):
    """Another process runs a broker on this data directory.

    Attributes:
        directory: the data directory.
        pid: the process that holds it, if its run file tells.
    """

    exit_code = 4

    def __init__(self, directory: Path, pid: int | None) -> None:
        self.directory = directory
        self.pid = pid
        super().__init__(
            f"broker directory {directory} is in use{f' by process {pid}' if pid else ''}",
            "stop that process, or choose another directory",
        )


class BrokerStartFailed(PipelineError):
    """The broker did not come up.

    Attributes:
        reason: ended with a code, or silent for too long.
        log_path: the log that tells more.
        log_tail: its last lines.
    """

    def __init__(self, reason: str, log_path: Path, log_tail: str) -> None:
        self.reason = reason
        self.log_path = log_path
        self.log_tail = log_tail
        cause = f"; last words: {log_tail}" if log_tail else ""
        super().__init__(f"the embedded broker {reason}{cause}", f"tail -n 50 {quote(str(log_path))}")


class NotADemoFolder(PipelineError):
    """The folder has content but not the demo's mark, so it may belong to a real job.

    Attributes:
        folder: the folder.
    """

    exit_code = 2

    def __init__(self, folder: Path, mark: str) -> None:
        self.folder = folder
        super().__init__(
            f"'--folder' must be new, empty or made by an earlier demo; got {folder}, which has content and no {mark}",
            "give another --folder; if an old demo made this one, delete it yourself",
        )


class OtherBrokerCount(PipelineError):
    """The demo that was here before had another number of brokers.

    Attributes:
        former: how many it had.
        wanted: how many are asked for now.
    """

    exit_code = 2

    def __init__(self, former: int, wanted: int) -> None:
        self.former = former
        self.wanted = wanted
        super().__init__(
            f"'--brokers' must be {former}, as in the demo before in this folder; got {wanted}",
            "leave --brokers out, or start over with --fresh",
        )


class DemoIsRunning(PipelineError):
    """Another process runs a demo in the folder.

    Attributes:
        folder: the folder.
        holder: that process's id as text; "unknown" if it has not told it.
    """

    exit_code = 4

    def __init__(self, folder: Path, holder: str) -> None:
        self.folder = folder
        self.holder = holder
        super().__init__(
            f"'--folder' must be used by one demo at a time; got {folder}, which process {holder} uses",
            f"stop that one, give another --folder, or look at the one that runs: {command_text('status')}",
        )
