"""Makes the class archives of this machine, those of Spark and of the embedded broker, where they are missing.

    python -m pipeline.demo.class_archives

Prints in one line what it did. A SIGTERM ends it and leaves nothing behind.
"""

import os
import signal
import sys

from pipeline.demo import broker_archive_making, spark_archive_making
from pipeline.demo.broker import broker_archive, broker_jars
from pipeline.errors import PipelineError
from pipeline.jvm.java import find_java


def are_missing() -> bool:
    """Whether there is one to be made."""
    try:
        spark = spark_archive_making.spark_archive()
        broker = broker_archive(find_java(), broker_jars())
    except PipelineError:
        return False
    return not (broker.exists() and (spark is None or spark[0].exists()))


def make() -> str:
    """Make those that are missing; returns in words what was done.

    The broker's is first: with it the broker that Spark reads from starts in half the time.
    """
    broker = broker_archive_making.make()
    return f"broker: {broker}; Spark: {spark_archive_making.make()}"


def main() -> None:
    """Make them, behind all that is more urgent; ends with exit code 143 at a SIGTERM."""
    os.nice(10)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.stdout.write(f"{make()}\n")


if __name__ == "__main__":
    main()
