"""The stages of the comparison: each is measured once, and kept.

The brokers' own quotas
-----------------------
The broker's own quotas: how soon a client that is over is slowed, and where its rate ends, on one broker and on two.

Each client is a plain kafka-python producer with a user and a quota T of its own, set on every broker. It wants k · T,
shared evenly by the brokers, and each request waits for the answer to the one before it.
"""

import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from kafka import KafkaProducer

from bench.closed_loop import Loop, offenders
from bench.peers.life import Amounts, catch_up, steady
from bench.peers.messages import SHAPES, Backlog, Shape
from bench.peers.roster import PEERS, TRIGGER_MS, Peer, PeerFailed, Place
from bench.stage import probing, stock_cluster, stock_producers, stock_work, topic_on_each
from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.clock import wall_ms
from pipeline.cluster.access import ClusterAccess
from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.stock_client import broker_throttle_ms
from pipeline.errors import PipelineError


class Store:
    """The measurements of one commit."""

    def __init__(self, folder: Path, commit: str) -> None:
        self._folder = folder
        self._commit = commit

    def known(self, stage: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        """What was measured at a stage with these arguments; None if nothing was."""
        try:
            told = json.loads(self._file(stage).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if told["commit"] != self._commit or told["asked"] != asked:
            return None
        measured: dict[str, Any] = told["measured"]
        return measured

    def keep(self, stage: str, asked: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
        """Keep what was measured; returns the same as `known` will."""
        self._folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"commit": self._commit, "asked": asked, "measured": measured}, indent=1)
        self._file(stage).write_text(text, encoding="utf-8")
        kept: dict[str, Any] = json.loads(text)["measured"]
        return kept

    def _file(self, stage: str) -> Path:
        return self._folder / f"{stage.replace(' ', '-')}.json"


BOUND: Final = 50_000.0
REQUESTS_PER_SECOND: Final = 20.0
SETTLED_SECONDS: Final = 15.0
_TOPIC: Final = "native"
_PROBE_BYTES: Final = 15_000
_PROBE_BOUND: Final = 1_000.0
_PROBES: Final = 30
_LOOK_SECONDS: Final = 0.25


def long_run(folder: Path, brokers: int, overloads: Sequence[float], seconds: float) -> dict[float, float]:
    """Rate ÷ T of a client for each k, all at once; without the first seconds, in which its burst goes through."""
    who = {overload: f"k-{overload:g}" for overload in overloads}
    at: list[float] = []
    sent: dict[float, list[float]] = {overload: [] for overload in overloads}
    with stock_cluster(folder, brokers, who.values()) as cluster:
        topic_on_each(cluster.brokers, _TOPIC)
        with NativeQuotas(ClusterAccess(cluster.bootstrap_servers)) as quotas:
            quotas.alter({NativeEntity.of_row(user, ""): {"producer_byte_rate": BOUND} for user in who.values()})
        shares, options = [1 / brokers] * brokers, {"max_request_size": 8 << 20}
        works = {
            overload: stock_work(cluster, user, _TOPIC, shares, overload * BOUND, REQUESTS_PER_SECOND, **options)
            for overload, user in who.items()
        }
        with stock_producers(works) as producers:
            for producer in producers.values():
                producer.start()
            time.sleep(SETTLED_SECONDS)
            end = time.monotonic() + max(seconds - SETTLED_SECONDS, 2.0)
            while time.monotonic() < end:
                at.append(time.monotonic())
                for overload, producer in producers.items():
                    sent[overload].append(float(sum(producer.sent_bytes)))
                time.sleep(_LOOK_SECONDS)
    return {overload: mean_rate(at, totals) / BOUND for overload, totals in sent.items()}


def mean_rate(at: Sequence[float], totals: Sequence[float]) -> float:
    """The mean of the rates over every half of a time.

    A broker lets a burst through each time its window has passed, about every 11 s. What is between two instants
    depends on where the bursts are; the mean over many beginnings hardly does.
    """
    half = (at[-1] - at[0]) / 2
    begins = np.linspace(at[0], at[0] + half, 1000)
    sent = np.interp(begins + half, at, totals) - np.interp(begins, at, totals)
    return float(np.mean(sent) / half)


def first_slowed_ms(folder: Path) -> list[float]:
    """From the produce call of a first request that is over its quota until the broker has muted the client.

    The answer to that request says for how long, and the broker takes nothing more until then. Each probe is a
    client-id that was never seen before. Gives the milliseconds of each.
    """
    taken_ms = []
    with EmbeddedBroker(folder) as broker:
        topic_on_each([broker], _TOPIC)
        with NativeQuotas(ClusterAccess(broker.bootstrap_servers)) as quotas:
            names = [f"probe-{number}" for number in range(_PROBES)]
            quotas.alter({NativeEntity.of_row("", name): {"producer_byte_rate": _PROBE_BOUND} for name in names})
        for name in names:
            producer: Any = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, client_id=name, linger_ms=0)
            producer.partitions_for(_TOPIC)
            began = time.perf_counter()
            producer.send(_TOPIC, bytes(_PROBE_BYTES)).get(30)
            taken_ms.append((time.perf_counter() - began) * 1000)
            _, told_ms = broker_throttle_ms(producer)
            producer.close(timeout=0)
            if not told_ms > 0:
                message = f"the broker did not throttle {name}: {told_ms} ms in its answer"
                raise RuntimeError(message)
    return taken_ms


def first_told_ms(amounts: Amounts) -> list[float]:
    """Milliseconds of each probe; see `bench.probe`."""
    load = amounts.events_per_second, amounts.clients
    with probing(None, TRIGGER_MS, amounts.seconds, amounts.warm_seconds, load=load) as (_, prober):
        return prober.probe(amounts.seconds)


OVERLOADS: Final = (1.2, 1.5, 2.0, 5.0, 10.0, 20.0, 50.0)
_BACK_MS: Final = 3_600_000
_LEAD_MS: Final = 1_000
_LAG_MS: Final = 200


@dataclass(frozen=True)
class Stage:
    """One thing to measure."""

    name: str  # of the file and on the command line
    asked: dict[str, Any]  # the amounts that matter to it
    run: Callable[[], dict[str, Any]]  # measures, and gives what is kept


def all_stages(amounts: Amounts) -> list[Stage]:
    """In the order in which they run. Peers take turns in each shape, so that a slow hour meets all of them."""
    start_ms = (wall_ms() - _BACK_MS) // 1000 * 1000
    backlog = cache(lambda: Backlog.build(amounts.events, amounts.clients, start_ms))

    def caught_up(peer: Peer, shape: Shape) -> dict[str, Any]:
        return _at_a_place(shape, lambda place: catch_up(peer, place, backlog(), amounts.rounds))

    def steadied(peer: Peer) -> dict[str, Any]:
        return _at_a_place("object", lambda place: steady(peer, place, amounts))

    told = asdict(amounts)
    caught = {name: told[name] for name in ("events", "clients", "rounds")}
    loaded = {name: told[name] for name in ("clients", "events_per_second", "warm_seconds", "seconds")}
    limits = {name: told[name] for name in ("native_seconds", "hours")}
    stages = [
        Stage(catch_up_name(peer, shape), caught, partial(caught_up, peer, shape)) for shape in SHAPES for peer in PEERS
    ]
    stages += [Stage(steady_name(peer), loaded, partial(steadied, peer)) for peer in PEERS if peer.is_durable]
    return [*stages, Stage("quotas", {**limits, **loaded}, partial(_quotas, amounts))]


def _at_a_place(shape: Shape, measure: Callable[[Place], Any]) -> dict[str, Any]:
    with _folder() as folder, EmbeddedBroker(folder / "broker") as broker:
        own = folder / "peer"
        own.mkdir()
        place = Place(broker.bootstrap_servers, own, "peer", shape)
        place.create_topics()
        try:
            return asdict(measure(place))
        except (PeerFailed, PipelineError) as failure:
            return {"failure": str(failure)}


def _quotas(amounts: Amounts) -> dict[str, Any]:
    with _folder() as folder:
        native = {
            str(brokers): long_run(folder / f"brokers-{brokers}", brokers, OVERLOADS, amounts.native_seconds)
            for brokers in (1, 2)
        }
        slowed_ms = first_slowed_ms(folder / "first")
    told_ms = first_told_ms(amounts)
    return {"native": native, "slowed_ms": slowed_ms, "told_ms": told_ms, "kquota": simulated(amounts.hours)}


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kquota-peers-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def simulated(hours: float) -> dict[float, float]:
    """Rate ÷ T of an offender that obeys kquota, for each k; see `bench.closed_loop`. Brokers do not matter to it."""
    chosen = [one for one in offenders((_LAG_MS,)) if one.cap == "window" and one.overload in OVERLOADS]
    Loop(_LEAD_MS, True, chosen).run(hours)
    return {one.overload: one.mean_ratio for one in chosen}


def catch_up_name(peer: Peer, shape: Shape) -> str:
    return f"catch-up {peer.name} {shape}"


def steady_name(peer: Peer) -> str:
    return f"steady {peer.name}"


def measured(stages: Sequence[Stage], store: Store, only: str, *, afresh: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run what is not known yet. Gives the name and the measurement of each stage, as soon as it is there.

    What could not be measured is not kept, so that it is tried again.
    """
    for stage in stages:
        is_wanted = re.search(only, stage.name) is not None
        known = None if is_wanted and afresh else store.known(stage.name, stage.asked)
        if known is None and is_wanted:
            run = stage.run()
            known = run if "failure" in run else store.keep(stage.name, stage.asked, run)
        if known is not None:
            yield stage.name, known
