"""Sums of usage by second and client with Quix Streams. Runs in an environment of its own, without kquota.

Arguments: bootstrap servers, input topic, output topic, object or array, state folder, a name, number of processes.

Exactly once, state in RocksDB with a changelog topic, a result for each event. One process uses one core, so there are
several of them in one consumer group. Objects are grouped by the key of their message; the events of arrays go
through a repartition topic.
"""

import multiprocessing
import multiprocessing.connection
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quixstreams import Application
from quixstreams.dataframe.windows import Sum

_MEASURES = ("produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns", "request_count")
_GRACE_MS = 600_000


def _event_time(value: Any, _headers: object, _timestamp: float, _kind: object) -> int:
    return int((value[0] if isinstance(value, list) else value)["event_time_ms"])


def _key(event: Mapping[str, Any]) -> str:
    return f"{event['user']}/{event['client_id']}"


def _result(sums: Mapping[str, Any], key: str, _timestamp: int, _headers: object) -> dict[str, Any]:
    return {"second_ms": sums["start"], "key": key, **{name: sums[name] for name in _MEASURES}}


def run(number: int) -> None:
    servers, source, sink, shape, state, name, _ = sys.argv[1:]
    application = Application(
        broker_address=servers,
        consumer_group=name,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=0.25,
        state_dir=Path(state) / str(number),
        consumer_extra_config={"group.instance.id": f"{name}-{number}"},
        loglevel="WARNING",
    )
    topic = application.topic(
        source, key_deserializer="str", value_deserializer="json", timestamp_extractor=_event_time
    )
    events = application.dataframe(topic)
    if shape == "array":
        events = events.apply(lambda elements: elements, expand=True)
        events = events.set_timestamp(lambda event, _key, _timestamp, _headers: event["event_time_ms"])
        events = events.group_by(_key, name="client", key_serializer="str", key_deserializer="str")
    windows = events.tumbling_window(1_000, grace_ms=_GRACE_MS)
    sums = windows.agg(**{measure: Sum(measure) for measure in _MEASURES}).current()
    results = sums.apply(_result, metadata=True)
    results.to_topic(application.topic(sink, key_serializer="str", value_serializer="json"))
    print("READY", flush=True)
    application.run()


def main() -> None:
    processes = [multiprocessing.Process(target=run, args=(number,)) for number in range(int(sys.argv[7]))]
    for process in processes:
        process.start()
    multiprocessing.connection.wait([process.sentinel for process in processes])
    os._exit(1)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
