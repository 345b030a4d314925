"""The one demo beside which the pages are played: `kquota demo` in a folder of its own, as a reader starts it."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT
from typing import Any, Final

from pipeline.clock import wall_ms
from pipeline.process import spawn, terminate
from pipeline.tables.throttles import recent_events, running_throttles
from tests.pages.blocks import ROOT
from tests.pages.transcript import reader_environment
from tests.waiting import PATIENCE_SECONDS, wait_until

_RECORDS_LOOKED_AT = 200


@dataclass
class RunningDemo:
    """A demo that runs; its reader is in `folder`, it is in `.kquota/demo`."""

    folder: Path
    process: "subprocess.Popen[bytes]"

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(encoding="utf-8")

    @property
    def tables(self) -> str:
        return str(self.folder / ".kquota" / "demo" / "tables")

    @property
    def addresses(self) -> Mapping[str, str]:
        broker = self.folder / ".kquota" / "demo" / "broker" / "broker.json"
        address = f"127.0.0.1:{json.loads(broker.read_text(encoding='utf-8'))['ports']['PLAINTEXT']}"
        return {"broker:9092": address, "broker:9093": address}

    def happens(self, event: str) -> None:
        self._wait(lambda: EVENTS[event](self), event)

    def stop(self) -> int:
        """Press Ctrl-C. Returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(SIGINT)
        return self.process.wait(PATIENCE_SECONDS)

    def await_start(self) -> None:
        log = Path(self.tables) / "throttle_events" / "_delta_log"
        self._wait(lambda: any(log.glob("*.json")), "the tables")
        self._wait(lambda: {"throttle", "release"} <= {row["action"] for row in self._records()}, "a release")

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        wait_until(lambda: is_so() or self.process.poll() is not None, what)
        assert self.process.poll() is None, f"the demo has ended before {what}:\n{self.output}"

    def last_action(self, user: str) -> str:
        return next(str(row["action"]) for row in self._records() if row["user"] == user)

    def _records(self) -> list[dict[str, Any]]:
        return recent_events(self.tables, _RECORDS_LOOKED_AT)


def _throttled(demo: RunningDemo) -> set[str]:
    return {row["user"] for row in running_throttles(demo.tables, wall_ms())}


EVENTS: Final[Mapping[str, Callable[[RunningDemo], bool]]] = {
    "alice/etl is throttled": lambda demo: "alice" in _throttled(demo),
    "alice/etl is released": lambda demo: demo.last_action("alice") == "release",
    "no client is throttled": lambda demo: not _throttled(demo),
}
"""What a page can wait for with a comment `<!-- happens: … -->`, and how it is seen."""


@contextmanager
def running_demo(folder: Path) -> Iterator[RunningDemo]:
    """A demo that has throttled and released clients. It is ended with the block."""
    (folder / "examples").symlink_to(ROOT / "examples")
    # By its path, as `make run` starts it: so the demo's hints name this path too.
    environment = {**reader_environment(folder), "PATH": os.environ["PATH"]}
    with (folder / "output").open("wb") as output:
        # It ends with this process, also if that is killed.
        process = spawn([str(folder / ".venv" / "bin" / "kquota"), "demo"], cwd=folder, output=output, env=environment)
    try:
        demo = RunningDemo(folder, process)
        demo.await_start()
        yield demo
    finally:
        terminate(process, 20)
