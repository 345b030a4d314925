"""The demo's load: all clients of a plan in one process. `python -m pipeline.demo.clients --plan FILE`.

Where the plan says so, nobody is over quota until something can be read on stdin. So a job does not begin with clients
that owe what they used while it started.

Prints one JSON line per client each second on stdout. Ends, within a second or two, on SIGTERM, on Ctrl-C, and when
its stdin is closed: a parent that dies closes it, however it dies.
"""

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread
from types import FrameType
from typing import Any, Final

from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.client import DemoClientThread
from pipeline.demo.plan import DEMO_TOPICS, SPLIT_TOPIC, DemoPlan
from pipeline.demo.sign_in import plain_sign_in
from pipeline.gate.view import ThrottleView
from pipeline.log import set_up_logging

log = logging.getLogger(__name__)

REPORT_EVERY_SECONDS: Final = 1.0


def start_demo_clients(plan_path: Path, **popen: Any) -> "subprocess.Popen[bytes]":
    """Start the load as a child of this process; it ends with it. Close its stdin, or terminate it, to stop it.

    Args:
        plan_path: A plan written by `DemoPlan.write`.
        popen: Further arguments of `subprocess.Popen`, such as stdout.
    """
    command = [sys.executable, "-m", "pipeline.demo.clients", "--plan", str(plan_path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, **popen)  # noqa: S603 - our own module


def create_demo_topics(admin: Any, brokers: int) -> None:
    """Create the topics that the clients use; existing ones stay as they are.

    Args:
        admin: A `KafkaAdminClient`.
        brokers: How many there are; Kafka puts the partitions of a topic on one after the other.
    """
    create_topics(
        admin,
        [
            TopicSpec(name, "demo", brokers if name == SPLIT_TOPIC else 1, "any", {}, settings)
            for name, settings in DEMO_TOPICS.items()
        ],
    )


def run(plan: DemoPlan, stopping: Event, in_full: Event) -> None:
    """Run the clients until `stopping`; returns when all have closed their connections, or after 3 s.

    Nobody is over quota before `in_full`.
    """
    view = ThrottleView(plan.view_bootstrap_servers, plan.throttle_topic, plan.cluster)
    view.start()
    clients = [
        DemoClientThread(
            client,
            plain_sign_in(plan.bootstrap_servers, client.user, plan.passwords[client.user]),
            view,
            stopping,
            in_full,
        )
        for client in plan.clients
    ]
    for client in clients:
        client.start()
    while not stopping.wait(REPORT_EVERY_SECONDS):
        lines = [json.dumps(client.report()) + "\n" for client in clients]
        try:
            sys.stdout.write("".join(lines))
            sys.stdout.flush()
        except BrokenPipeError:
            stopping.set()
    for client in clients:
        client.leave()
    for client in clients:
        client.join(3.0 / len(clients))
    view.close(1.0)


def _listen_to_parent(stopping: Event, in_full: Event) -> None:
    def watch() -> None:
        # Not sys.stdin: a thread that waits in its buffer makes the interpreter abort at exit.
        while os.read(0, 4096):
            in_full.set()
        stopping.set()

    Thread(target=watch, name="stdin-watch", daemon=True).start()


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the module."""
    parser = argparse.ArgumentParser(description="Runs the clients of the demo.")
    parser.add_argument("--plan", type=Path, required=True, help="JSON file written by DemoPlan.write")
    plan_path: Path = parser.parse_args(arguments).plan
    set_up_logging("WARNING")
    plan, stopping, in_full = DemoPlan.read(plan_path), Event(), Event()
    if not plan.starts_calm:
        in_full.set()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    _listen_to_parent(stopping, in_full)
    run(plan, stopping, in_full)


if __name__ == "__main__":
    main()
