"""A pytest plugin: a test without a broker must not leave a thread of a Kafka client behind.

Such a thread goes on trying to connect for ever, and each further try adds one. A follower that is closed while it
connects gives up at the end of that try, so threads are waited for.
"""

import threading
from collections.abc import Generator
from typing import Final

import pytest

from tests.waiting import PATIENCE_SECONDS

_TOLD: Final = pytest.StashKey[set[threading.Thread]]()
_HAD_BROKER: Final = pytest.StashKey[bool]()


def kafka_threads() -> set[threading.Thread]:
    """The threads of kafka-python that run now: of the network, or of a producer's sender."""
    return {
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("kafka-io-") or thread.name.endswith("-network-thread")
    }


def _goes_on(thread: threading.Thread) -> bool:
    thread.join(PATIENCE_SECONDS)
    return thread.is_alive()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Notes that from now on this process may hold a broker, whose clients live as long as their fixtures."""
    if any(item.get_closest_marker(name) for name in ("broker", "spark")):
        item.config.stash[_HAD_BROKER] = True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Fails the test that left threads behind, when its fixtures are gone."""
    yield
    if item.config.stash.get(_HAD_BROKER, False):
        return
    told = item.config.stash.setdefault(_TOLD, set())
    left = {thread for thread in kafka_threads() - told if _goes_on(thread)}
    told |= left
    if left:
        names = ", ".join(sorted(thread.name for thread in left))
        pytest.fail(f"the test leaves threads of a Kafka client behind: {names}", pytrace=False)
