"""Catching up after an outage: events per second of the whole reading path, compared with bare Spark.

A real broker has two topics with the same events, those of `bench.peers`: one has an object per message, the other
arrays of 100. Each of the following reads a topic from its first to its last offset, in turns:

    consume only   the Kafka connector alone
    hand over      and the messages are given to Python as they are, in Arrow, which parses nothing
    parse only     and `from_json`
    limit          and sums per second and client, fetched with `toArrow`; no check, no clamp, no dead letters

and then, in a JVM with the job's options:

    kquota         all checks, sums and dead letters by the job's reader on the executors, as of a large micro-batch

    python -m bench.catch_up [--events 1000000] [--clients 10000] [--rounds 5] [--cores 1 2]

Bare Spark has Java's optimizing compiler, which the job does without. With several numbers of cores all of it, the
broker too, runs on the first so many of the machine, in turns.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, TypeVar

from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F

from bench.machine import arguments as options
from bench.pages import line
from bench.peers.messages import MEASURES, SHAPES, Backlog, create_logged_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import fetch, spark_jars
from pipeline.jvm.java import find_java
from pipeline.settings.model import SparkSettings
from pipeline.stream.collect import collect_on_executors
from pipeline.stream.query import RAW_COLUMNS, RECORDS_OF_A_POLL
from pipeline.stream.session import build_spark_session
from pipeline.stream.usage_columns import FIELD_RULES, ReadingRules

_EVENT_STRUCT: Final = "STRUCT<" + ", ".join(f"{rule.name}: {rule.spark_type}" for rule in FIELD_RULES) + ">"
"""The fields of a usage event as a type of Spark."""
_AGO_MS: Final = 60_000  # when the outage began
_WARM_UP_ROUNDS: Final = 4  # the optimizing compiler is done
_HEAP: Final = "2g"
BARE_SPARK: Final = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4"}
"""What Spark is configured with where it is a peer: with Java's optimizing compiler, as by default."""
# A consumer that has read to the end of the log asks for more at once, and the broker keeps that fetch for 500 ms by
# default. The next round on the same consumer waits for it: up to half a second per round, the same for every case.
_FETCH_WAIT_MS: Final = 0
_RULES: Final = ReadingRules(sample_window_ms=1_000, max_event_age_ms=86_400_000)
_USUAL_BYTES: Final = {"object": 200.0, "array": 20_000.0}  # of a message

_OF_BARE_SPARK: Final = ("consume only", "hand over", "parse only", "limit")

Case = Callable[[DataFrame], object]
T = TypeVar("T")


def main() -> int:
    arguments = options(__doc__, events=1_000_000, clients=10_000, rounds=5, cores=[os.cpu_count() or 1])
    fetch()
    os.environ["JAVA_HOME"] = str(find_java().home)
    for cores in arguments.cores:
        _in_a_process(_run, arguments, cores)  # which keeps to these cores
    return 0


def _run(arguments: argparse.Namespace, cores: int) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder) / "broker") as broker:
        _fill(broker.bootstrap_servers, arguments.events, arguments.clients)
        print(
            f"on {cores} of the cores: {arguments.events} events, {arguments.clients} clients, "
            f"median of {arguments.rounds}; k events/s"
        )
        spark, kquota = (
            # A process of its own for each: Spark's JVM lives as long as the process that has started it.
            _in_a_process(_measured, broker.bootstrap_servers, conf, cases, arguments.rounds)
            for conf, cases in ((BARE_SPARK, _OF_BARE_SPARK), ({}, ("kquota",)))
        )
        names = [*_OF_BARE_SPARK, "kquota", "kquota/limit"]
        widths = [-9, *[14] * len(names)]
        print(line(widths, ["messages", *names]))
        for topic in SHAPES:
            seconds = spark[topic] | kquota[topic]
            rates = [arguments.events / taken / 1e3 for taken in seconds.values()]
            print(line(widths, [topic, *rates, f"{seconds['limit'] / seconds['kquota']:.2f}"]), flush=True)


def _in_a_process(function: Callable[..., T], *args: object) -> T:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def _measured(servers: str, conf: dict[str, Any], names: Sequence[str], rounds: int) -> dict[str, dict[str, float]]:
    """The median seconds of these cases, by the shape of the messages."""
    spark = build_spark_session(SparkSettings(driver_memory=_HEAP, conf=conf), spark_jars())
    try:
        return {
            shape: _measure(
                messages_of(spark, servers, shape).select(*RAW_COLUMNS),
                {name: _cases(shape)[name] for name in names},
                rounds,
            )
            for shape in SHAPES
        }
    finally:
        spark.stop()


def _fill(bootstrap_servers: str, count: int, clients: int) -> None:
    create_logged_topics(bootstrap_servers, SHAPES)
    backlog = Backlog.build(count, clients, int(time.time() * 1000) - _AGO_MS)
    for shape in SHAPES:
        backlog.send(bootstrap_servers, shape, shape, 0)


def messages_of(
    spark: SparkSession, bootstrap_servers: str, topic: str, spans: Mapping[str, Mapping[str, int]] | None = None
) -> DataFrame:
    """A topic, all of it or by `startingOffsets` and `endingOffsets` of its partitions."""
    offsets = {option: json.dumps({topic: by_partition}) for option, by_partition in (spans or {}).items()}
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.fetch.max.wait.ms", _FETCH_WAIT_MS)
        .option("kafka.max.poll.records", RECORDS_OF_A_POLL)
        .option("subscribe", topic)
        .options(**offsets)
        .load()
    )


def parsed(messages: DataFrame, shape: str) -> DataFrame:
    schema = f"ARRAY<{_EVENT_STRUCT}>" if shape == "array" else _EVENT_STRUCT
    return messages.select(F.from_json(F.col("value").cast("string"), schema).alias("parsed"))


def by_second(messages: DataFrame, shape: str, *names: str) -> GroupedData:
    """Events by second, and by other names."""
    events = parsed(messages, shape).select(F.inline("parsed") if shape == "array" else "parsed.*")
    return events.groupBy(F.expr("event_time_ms - event_time_ms % 1000").alias("second_ms"), *names)


def _cases(shape: str) -> dict[str, Case]:
    def limit(messages: DataFrame) -> object:
        groups = by_second(messages, shape, "broker_id", "user", "client_id")
        return groups.agg(*[F.sum(name) for name in MEASURES], F.max("event_time_ms"), F.count(F.lit(1))).toArrow()

    return {
        "consume only": lambda messages: _discard(messages.select("value")),
        "hand over": lambda messages: messages.select("value").toArrow(),
        "parse only": lambda messages: _discard(parsed(messages, shape)),
        "limit": limit,
        "kquota": lambda messages: collect_on_executors(messages, _RULES, _USUAL_BYTES[shape]),
    }


def _discard(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _measure(messages: DataFrame, cases: dict[str, Case], rounds: int) -> dict[str, float]:
    """The median seconds of each case. The cases take turns, so that a busy moment affects all of them equally."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(_WARM_UP_ROUNDS + rounds):
        for name, case in cases.items():
            begun = time.perf_counter()
            case(messages)
            if number >= _WARM_UP_ROUNDS:
                seconds[name].append(time.perf_counter() - begun)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


if __name__ == "__main__":
    sys.exit(main())
