"""Makes the class archive of the embedded broker on this machine.

    python -m pipeline.demo.broker_archive_making

Starts a broker in a folder of its own and stops it; its JVM then writes the classes it has loaded to the archive.
Prints in one line what it did. An archive only saves time, so no failure here is an error: the broker also starts
without one.
"""

import sys
from pathlib import Path

from pipeline.demo.broker import BrokerOptions, EmbeddedBroker, broker_archive, broker_jars
from pipeline.errors import PipelineError
from pipeline.jvm.java import find_java, make_archive


def make() -> str:
    """Make the archive if it is missing; returns in words what was done."""
    try:
        java, jars = find_java(), broker_jars()
    except PipelineError as exc:
        return f"none: {exc}"
    return make_archive(broker_archive(java, jars), jars, train)


def train(draft: Path) -> str:
    """Run a broker whose JVM writes the archive when it stops, in a folder next to it; returns why there is none."""
    try:
        with EmbeddedBroker(draft.parent / "broker", options=BrokerOptions(request_log=True, archive_draft=draft)):
            pass
    except PipelineError as exc:
        return str(exc)
    return "" if draft.exists() else "the broker's JVM has written none"


if __name__ == "__main__":
    sys.stdout.write(f"{make()}\n")
