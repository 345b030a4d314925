"""Other stream processors and ours, side by side on the same messages.

    python -m bench.peers [--only PATTERN] [--quick] [--page docs/peers.md]

The task: sums of five measures by second, user and client-id, exactly once, from a topic of usage events. Every sum of
every peer is compared with plain Python before any speed is printed. `--only` runs some stages; `--page` puts the
tables of a whole run into a page.

    catch-up   a backlog waits when the peer starts (cold). Then the peer is stopped (SIGSTOP), as many events come, and
               it goes on (warm). The rate is that from its going on until its last result can be read
    steady     20 000 events a second in keyed objects; from the produce call of a client's first event in a second
               until its result can be read; then kill -9, a restart at once, and until a later one is answered
    probe      the same load: from the produce call of a first event above the quota until kquota's record can be read
"""

import argparse
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from bench.load import messages_in
from bench.machine import arguments, machine_line
from bench.pages import write_part
from bench.peers.life import CaughtUp, Steady, catch_up, steady
from bench.peers.messages import SHAPES, Backlog, Shape
from bench.peers.report import Measured, catch_up_name, markdown, steady_name, tables_of
from bench.peers.roster import PEERS, TRIGGER_MS, Peer, PeerFailed, Place
from bench.probe import probed
from bench.stage import bound, staged
from pipeline.clock import wall_ms
from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.errors import PipelineError
from pipeline.jvm.jars import fetch

MARKS: Final = ("<!-- peers: written by `python -m bench peers` -->", "<!-- peers end -->")
_BACK_MS: Final = 3_600_000
# Ten users that are far over their quota, so that there is something to decide.
_QUOTAS: Final = [bound("<default>", 1e9, "<default>"), *(bound(f"user-{number}", 1_000.0) for number in range(10))]


def main() -> None:
    asked = arguments(
        __doc__,
        only="",
        quick=False,
        page="",
        events=1_000_000,
        rounds=5,
        clients=10_000,
        events_per_second=20_000,
        warm_seconds=60.0,  # from minute 2 of a life on, when the JVMs have compiled what they run
        seconds=60.0,  # all that a job does once a minute is in it
    )
    if asked.quick:
        asked.events, asked.rounds = asked.events // 10, 1
        asked.events_per_second, asked.warm_seconds, asked.seconds = 2_000, 5.0, 10.0
    fetch()
    runs: Measured = {}
    for name, measure in stages(asked).items():
        if re.search(asked.only, name):
            try:
                runs[name] = measure()
            except (PeerFailed, PipelineError) as failure:
                runs[name] = str(failure)
            print(f"\n{name}, {time.strftime('%H:%M:%S')}\n{tables_of({name: runs[name]})}", flush=True)
    about = (
        f"{machine_line()}, load average {os.getloadavg()[0]:.1f} at the end. Backlogs of {asked.events:,} events of "
        f"{asked.clients:,} clients, median of {asked.rounds} warm ones. Steady load: {asked.events_per_second:,} "
        f"events a second, measured for {asked.seconds:g} s."
    )
    text = markdown(runs, about)
    print(f"\n{text}")
    if asked.page and not (asked.only or asked.quick):
        write_part(Path(asked.page), *MARKS, text)


def stages(asked: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """In the order in which they run. Peers take turns in each shape, so that a slow hour meets all of them."""
    start_ms = (wall_ms() - _BACK_MS) // 1000 * 1000
    backlog = cache(lambda partitions: Backlog.build(asked.events, asked.clients, start_ms, partitions))

    def caught_up(peer: Peer, shape: Shape) -> CaughtUp:
        with _place(shape) as place:
            partitions = len(messages_in(place.servers, place.source))
            return catch_up(peer, place, backlog(partitions), asked.rounds)

    load = asked.events_per_second, asked.clients
    times = {"warm_seconds": asked.warm_seconds, "seconds": asked.seconds}

    def steadied(peer: Peer) -> Steady:
        with _place("object") as place:
            return steady(peer, place, load, **times)

    return {
        **{catch_up_name(peer.name, shape): partial(caught_up, peer, shape) for shape in SHAPES for peer in PEERS},
        **{steady_name(peer.name): partial(steadied, peer) for peer in PEERS if peer.is_durable},
        "probe": partial(probed, *load, **times, trigger_ms=TRIGGER_MS, events_per_message=1),
    }


@contextmanager
def _place(shape: Shape) -> Iterator[Place]:
    with staged(_QUOTAS) as stage, ClusterAccess(stage.servers).admin() as admin:
        place = Place(stage, shape)
        partitions = len(messages_in(stage.servers, place.source))
        append_time = {"message.timestamp.type": "LogAppendTime"}
        create_topics(admin, [TopicSpec(place.sink, "usage", partitions, "any", append_time, {})])
        yield place


if __name__ == "__main__":
    main()
