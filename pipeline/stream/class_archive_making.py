"""Makes the class archive of Spark on this machine.

    python -m pipeline.stream.class_archive_making

Starts Spark, lets it work as the job does, and lets the JVM write the classes it has loaded to the archive. Prints in
one line what it did. An archive only saves time, so no failure here is an error: the job also starts without one.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from pipeline.jvm.class_archive import class_archive, make_archive, options_to_make
from pipeline.jvm.jars import pyspark_jars_folder
from pipeline.jvm.java import find_java
from pipeline.settings.model import Settings, SparkSettings
from pipeline.stream.reading_rules import ReadingRules

_PATIENCE_SECONDS: Final = 180.0
_MICRO_BATCHES: Final = 3


def make() -> str:
    """Make the archive if it is missing; returns in words what was done."""
    jars = pyspark_jars_folder()
    if jars is None:
        return "none: no jars of pyspark"
    return make_archive(class_archive("spark", find_java().home, [jars]), [jars], _train_in_a_process)


def _train_in_a_process(draft: Path) -> str:
    command = [sys.executable, "-m", "pipeline.stream.class_archive_making", str(draft)]
    try:
        trained = subprocess.run(  # noqa: S603 - ourselves
            command, capture_output=True, text=True, check=False, timeout=_PATIENCE_SECONDS
        )
    except subprocess.TimeoutExpired as exc:
        return str(exc)
    return trained.stderr.strip().splitlines()[-1] if trained.returncode else ""


def train(draft: Path) -> None:
    """Run Spark as the job does, in a JVM that writes the archive when it ends; returns when it is written."""
    # Only this process needs Spark, not one that finds the archive already there.
    from pyspark import SparkContext  # noqa: PLC0415

    from pipeline.stream.spark_starter import SparkStarter  # noqa: PLC0415

    options = {"spark.driver.extraJavaOptions": " ".join(options_to_make(draft))}
    settings = Settings(spark=SparkSettings(conf=options))
    with (
        tempfile.TemporaryDirectory() as checkpoint,
        SparkStarter(settings.spark, checkpoint, ReadingRules.from_settings(settings)) as starter,
    ):
        _stream(starter.session(), checkpoint)
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_PATIENCE_SECONDS)


def _stream(session: Any, checkpoint: str) -> None:
    done = 0

    def batch(rows: Any, _number: int) -> None:
        nonlocal done
        rows.groupBy("value").count().toArrow()
        done += 1

    source = session.readStream.format("rate").name("rate").option("rowsPerSecond", "100").load()
    writer = source.writeStream.option("checkpointLocation", checkpoint).foreachBatch(batch)
    query = writer.trigger(processingTime="200 milliseconds").start()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while done < _MICRO_BATCHES and query.isActive and time.monotonic() < deadline:
        time.sleep(0.1)
    query.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]))
    else:
        sys.stdout.write(f"{make()}\n")
