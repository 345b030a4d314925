"""All of the demo but the job, on two brokers: reporters, clients, stock clients, and the quotas on the brokers."""

import json
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.cluster.access import ClusterAccess
from pipeline.command_line import carry_nothing
from pipeline.demo.folder import DemoFolder
from pipeline.demo.plan import DEMO_CLIENTS, STOCK_CLIENTS
from pipeline.demo.run import Load, demo_settings, new_cluster, prepare
from pipeline.settings.loading import load_settings
from tests.log_messages import messages_of
from tests.topic_reading import read_topic
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long]  # it has all processes of the demo but the job

Reports = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DemoFolder]:
    demo = DemoFolder(tmp_path / "demo")
    with demo.claimed():
        yield demo
    carry_nothing()


def test_brokers_slow_stock_clients_reporters_name_them_and_a_dead_broker_is_reported(
    folder: DemoFolder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    reports: Reports = {}
    with ExitStack() as stack:
        settings = load_settings()
        cluster = stack.enter_context(new_cluster(folder, 2, settings.kafka.usage_topic))
        prepare(folder, demo_settings(settings, folder, cluster), 2)
        load = Load(cluster, folder, lambda one: reports.update({(one["user"], one["client_id"]): one}), stack)
        load.start()
        load.send_in_full()
        watching = Thread(target=load.watch, args=(None, lambda: None))
        watching.start()
        stock = [(client.user, client.client_id) for client in STOCK_CLIENTS]
        wait_until(lambda: len(reports) == len(DEMO_CLIENTS) + len(stock), "all clients")
        wait_until(lambda: all(reports[one]["broker_throttle_max_ms"] > 0 for one in stock), "the brokers to slow them")
        assert all(one["broker_throttle_max_ms"] == 0 for name, one in reports.items() if name not in stock)

        with NativeQuotas(ClusterAccess(cluster.bootstrap_servers)) as quotas:
            metering = ("<default>", "<default>")  # what makes brokers measure all the others
            entities = {NativeEntity.of_row(*one) for one in (*stock, metering)}
            assert {quota.entity for quota in quotas.describe()} == entities
        usage = [json.loads(record.value) for record in read_topic(cluster.bootstrap_servers, "quota.usage.v1")]
        events = [event for message in usage for event in (message if isinstance(message, list) else [message])]
        writers = {event["broker_id"] for event in events if event["user"] == "erp" and event.get("produced_bytes")}
        assert writers == {"1", "2"}
        names = {(event["user"], event["client_id"]) for event in events}
        assert names >= {(client.user, client.client_id) for client in (*DEMO_CLIENTS, *STOCK_CLIENTS)}
        # Not brokers, not what looks on: of them there is only what no client is charged for.
        unsigned = [event for event in events if event["user"] == "ANONYMOUS"]
        assert unsigned
        assert all(event["throttle_exempt"] for event in unsigned)

        second = cluster.brokers[1]
        assert second.pid is not None
        os.kill(second.pid, signal.SIGKILL)
        told = "broker 2 has ended (-9); its partitions are away until the demo is restarted"
        wait_until(lambda: told in messages_of(caplog, "pipeline.demo.run"), "the line about it")
    watching.join(PATIENCE_SECONDS)
