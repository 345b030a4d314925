"""The sync on a thread beside other work: `kquota run --sync`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Final

from pipeline.background import Background
from pipeline.settings.model import Settings
from pipeline.sync.running import run_sync

_PATIENCE_SECONDS: Final = 15.0
_ENDED_SECONDS: Final = 3_600.0


@contextmanager
def sync_beside(settings: Settings, ended: Callable[[], None]) -> Iterator[None]:
    """Keep the brokers' quotas until the end of the block.

    Args:
        settings: The whole tree.
        ended: Called on the sync's thread if it fails for good, as `run_sync` does. It should end the block.

    Raises:
        PipelineError: At the end of the block, what the sync failed with. An error of the block goes before it.
    """
    stopping, failures = Event(), list[BaseException]()

    def run() -> float:
        run_sync(settings, stopping.wait)
        return _ENDED_SECONDS  # `close` ends this rest

    def failed(failure: BaseException) -> None:
        failures.append(failure)
        ended()

    thread = Background("sync", run, failed)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.close(_PATIENCE_SECONDS)
    if failures:
        raise failures[0]
