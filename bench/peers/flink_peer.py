"""Sums of usage by second and client with Flink SQL. Runs in an environment of its own, which knows nothing of kquota.

Arguments: bootstrap servers, input topic, output topic, folder of checkpoints, a name, the connector's jar.

A tumbling window of event time, exactly once: checkpoints four times a second, results in Kafka transactions. The JSON
format takes an array as so many rows. It starts from the newest checkpoint in the folder, if there is one.
"""

import sys
import time
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

_SOURCE = """
CREATE TABLE events (
  event_time_ms BIGINT, `user` STRING, client_id STRING,
  produced_bytes BIGINT, fetched_bytes BIGINT, io_time_ns BIGINT, network_time_ns BIGINT, request_count BIGINT,
  event_at AS TO_TIMESTAMP_LTZ(event_time_ms, 3), WATERMARK FOR event_at AS event_at - INTERVAL '0.2' SECOND
) WITH ('connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{servers}',
  'properties.group.id' = '{name}', 'scan.startup.mode' = 'earliest-offset', 'format' = 'json')
"""
_SINK = """
CREATE TABLE sums (
  second_ms BIGINT, `key` STRING,
  produced_bytes BIGINT, fetched_bytes BIGINT, io_time_ns BIGINT, network_time_ns BIGINT, request_count BIGINT
) WITH ('connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{servers}',
  'key.format' = 'raw', 'key.fields' = 'key', 'value.format' = 'json', 'sink.delivery-guarantee' = 'exactly-once',
  'sink.transactional-id-prefix' = '{name}', 'properties.transaction.timeout.ms' = '60000')
"""
_QUERY = """
INSERT INTO sums
SELECT UNIX_TIMESTAMP(DATE_FORMAT(window_start, 'yyyy-MM-dd HH:mm:ss')) * 1000, `user` || '/' || client_id,
  SUM(produced_bytes), SUM(fetched_bytes), SUM(io_time_ns), SUM(network_time_ns), SUM(request_count)
FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(event_at), INTERVAL '1' SECOND))
GROUP BY window_start, window_end, `user`, client_id
"""


def main() -> None:
    servers, source, sink, checkpoints, name, jar = sys.argv[1:]
    settings = {
        "parallelism.default": "2",
        "pipeline.jars": Path(jar).as_uri(),
        "table.local-time-zone": "UTC",
        "execution.checkpointing.interval": "250 ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": Path(checkpoints).as_uri(),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    }
    newest = max(Path(checkpoints).glob("*/chk-*/_metadata"), key=lambda file: file.stat().st_mtime, default=None)
    if newest is not None:
        settings["execution.state-recovery.path"] = newest.parent.as_uri()
    configuration = Configuration()
    for key, value in settings.items():
        configuration.set_string(key, value)
    with_settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration)
    environment = TableEnvironment.create(with_settings.build())
    environment.execute_sql(_SOURCE.format(topic=source, servers=servers, name=name))
    environment.execute_sql(_SINK.format(topic=sink, servers=servers, name=name))
    job = environment.execute_sql(_QUERY).get_job_client()
    if job is None:
        sys.exit("the query became no job")
    while str(job.get_job_status().result()) not in {"JobStatus.RUNNING", "RUNNING"}:
        time.sleep(0.05)
    print("READY", flush=True)
    job.get_job_execution_result().result()


if __name__ == "__main__":
    main()
