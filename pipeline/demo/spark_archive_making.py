"""Makes the class archive of Spark on this machine.

    python -m pipeline.demo.spark_archive_making

Starts a broker and Spark, reads usage messages as the job does, and lets the JVM write what it has learned to the
archive. Prints in one line what it did. An archive only saves time, so no failure here is an error: the job also starts
without one.
"""

import json
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from kafka import KafkaProducer

from pipeline.clock import wall_ms
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import create_topics, wanted_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import PipelineError
from pipeline.jvm.jars import spark_jars
from pipeline.jvm.java import class_archive, find_java, make_archive, options_to_make
from pipeline.settings.model import KafkaSettings, Settings, SparkSettings
from pipeline.stream.session import archived_jars
from pipeline.stream.usage_columns import ReadingRules

_PATIENCE_SECONDS: Final = 180.0
_MICRO_BATCHES: Final = 12
_MESSAGES: Final = 40


def make() -> str:
    """Make the archive if it is missing; returns in words what was done."""
    try:
        archive_and_jars = spark_archive()
    except PipelineError as exc:
        return f"none: {exc}"
    if archive_and_jars is None:
        return "none: no jars of pyspark"
    return make_archive(*archive_and_jars, _train_in_a_process)


def spark_archive() -> tuple[Path, list[Path]] | None:
    """The path of Spark's archive, which may not exist, and the jars it is for; None without pyspark.

    Raises:
        PipelineError: There is no Java for it, or a jar is missing or altered.
    """
    jars = archived_jars(spark_jars())
    return (class_archive("spark", find_java().home, jars), jars) if jars else None


def _train_in_a_process(draft: Path) -> str:
    command = [sys.executable, "-m", "pipeline.demo.spark_archive_making", str(draft)]
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

    from pipeline.stream.session import SparkStarter  # noqa: PLC0415

    options = {"spark.driver.extraJavaOptions": " ".join(options_to_make(draft))}
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder) / "broker") as broker:
        settings = Settings(
            spark=SparkSettings(conf=options), kafka=KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
        )
        with ClusterAccess.from_settings(settings.kafka).admin() as admin:
            create_topics(admin, wanted_topics(settings))
        rules = ReadingRules.from_settings(settings)
        checkpoint = str(Path(folder) / "checkpoint")
        with SparkStarter(settings.spark, checkpoint, rules) as starter:
            _stream(starter.session(), settings, broker.bootstrap_servers, checkpoint)
        gateway: Any = SparkContext._gateway
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(_PATIENCE_SECONDS)


def _stream(session: Any, settings: Settings, servers: str, checkpoint: str) -> None:
    from pipeline.stream.collect import Collector  # noqa: PLC0415
    from pipeline.stream.query import UsageQuery, read_usage_topic  # noqa: PLC0415

    collect = Collector(ReadingRules.from_settings(settings))
    done = 0

    def batch(rows: Any, number: int) -> None:
        nonlocal done
        # Both ways of reading a batch: on the driver, and on the executors as one of unknown size.
        collect(rows, _MESSAGES if number % 2 else None)
        done += 1

    source = read_usage_topic(
        session,
        servers,
        settings.kafka.usage_topic,
        client_options={},
        starting_offsets="earliest",
        max_offsets_per_trigger=settings.stream.max_offsets_per_trigger,
    )
    query = UsageQuery(source, batch, "training", checkpoint, settings.stream.trigger_ms)
    query.start()
    deadline = time.monotonic() + _PATIENCE_SECONDS / 2
    producer: Any = KafkaProducer(bootstrap_servers=servers)
    with closing(producer):
        while done < _MICRO_BATCHES and query.is_active() and time.monotonic() < deadline:
            for value in _messages():
                producer.send(settings.kafka.usage_topic, value)
            time.sleep(0.1)
    query.stop()


def _messages() -> list[bytes]:
    """One object, one that is refused, and arrays, as a meter sends them."""
    event = {"event_time_ms": wall_ms(), "user": "u", "client_id": "c", "produced_bytes": 1}
    array = [event | {"client_id": f"c{number}", "io_time_ns": number} for number in range(20)]
    return [json.dumps(event).encode(), b"no JSON", *[json.dumps(array).encode()] * _MESSAGES]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]))
    else:
        sys.stdout.write(f"{make()}\n")
