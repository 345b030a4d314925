"""Makes the class archives of this machine, those of Spark and of the embedded broker, where they are missing.

    python -m pipeline.demo.class_archives

Starts a broker and Spark in folders of their own, uses them as the job does, and lets each JVM write the classes it has
loaded to the archive. Prints in one line what it did. An archive only saves time, so no failure here is an error:
broker and job also start without one. A SIGTERM ends it and leaves nothing behind.
"""

import json
import os
import signal
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
from pipeline.demo.broker import BrokerOptions, EmbeddedBroker, broker_archive, broker_jars
from pipeline.errors import PipelineError
from pipeline.jvm.jars import spark_jars
from pipeline.jvm.java import class_archive, find_java, make_archive, options_to_make
from pipeline.settings.model import KafkaSettings, Settings, SparkSettings
from pipeline.stream.session import archived_jars
from pipeline.stream.usage_columns import ReadingRules

_PATIENCE_SECONDS: Final = 180.0
_MICRO_BATCHES: Final = 12
_MESSAGES: Final = 40


def are_missing() -> bool:
    """Whether there is one to be made."""
    try:
        spark = _spark_archive()
        broker = broker_archive(find_java(), broker_jars())
    except PipelineError:
        return False
    return not (broker.exists() and (spark is None or spark[0].exists()))


def main() -> None:
    """Make those that are missing, behind all that is more urgent; ends with exit code 143 at a SIGTERM.

    The broker's is first: with it the broker that Spark reads from starts in half the time.
    """
    os.nice(10)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    broker = make_broker_archive()
    sys.stdout.write(f"broker: {broker}; Spark: {make_spark_archive()}\n")


def make_broker_archive() -> str:
    """Make the broker's archive if it is missing; returns in words what was done."""
    try:
        java, jars = find_java(), broker_jars()
    except PipelineError as exc:
        return f"none: {exc}"
    return make_archive(broker_archive(java, jars), jars, _train_broker)


def _train_broker(draft: Path) -> str:
    try:
        with EmbeddedBroker(draft.parent / "broker", options=BrokerOptions(archive_draft=draft)):
            pass
    except PipelineError as exc:
        return str(exc)
    return "" if draft.exists() else "the broker's JVM has written none"


def make_spark_archive() -> str:
    """Make Spark's archive if it is missing; returns in words what was done."""
    try:
        archive_and_jars = _spark_archive()
    except PipelineError as exc:
        return f"none: {exc}"
    if archive_and_jars is None:
        return "none: no jars of pyspark"
    return make_archive(*archive_and_jars, _train_in_a_process)


def _spark_archive() -> tuple[Path, list[Path]] | None:
    """The path of Spark's archive, which may not exist, and the jars it is for; None without pyspark."""
    jars = archived_jars(spark_jars())
    return (class_archive("spark", find_java().home, jars), jars) if jars else None


def _train_in_a_process(draft: Path) -> str:
    command = [sys.executable, "-m", "pipeline.demo.class_archives", str(draft)]
    try:
        trained = subprocess.run(  # noqa: S603 - ourselves
            command, capture_output=True, text=True, check=False, timeout=_PATIENCE_SECONDS
        )
    except subprocess.TimeoutExpired as exc:
        return str(exc)
    return trained.stderr.strip().splitlines()[-1] if trained.returncode else ""


def _train_spark(draft: Path) -> None:
    """Run Spark as the job does, in a JVM that writes the archive when it ends; returns when it is written."""
    # Only this process needs Spark, not one that finds the archive already there.
    from pyspark import SparkContext  # noqa: PLC0415

    from pipeline.stream.session import SparkStarter  # noqa: PLC0415

    options = {"spark.driver.extraJavaOptions": " ".join(options_to_make(draft))}
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder) / "broker") as broker:
        kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
        settings = Settings(spark=SparkSettings(conf=options), kafka=kafka)
        with ClusterAccess.from_settings(settings.kafka).admin() as admin:
            create_topics(admin, wanted_topics(settings))
        with SparkStarter(settings) as starter:
            _stream(starter.session(), settings, broker.bootstrap_servers, str(Path(folder) / "checkpoint"))
    # Writing the archive takes the most memory, so the broker is stopped first.
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
        _train_spark(Path(sys.argv[1]))
    else:
        main()
