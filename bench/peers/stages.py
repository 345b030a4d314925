"""The stages of the comparison: each is measured once, and kept."""

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.closed_loop import Loop, offenders
from bench.peers.backlog import SHAPES, Backlog, Shape
from bench.peers.catch_up import catch_up
from bench.peers.environments import PeerMissing
from bench.peers.life import PeerFailed
from bench.peers.native import first_slowed_ms, long_run
from bench.peers.reaction import first_told_ms
from bench.peers.roster import PEERS, Peer, Place
from bench.peers.steady import SteadyLoad, steady
from bench.peers.store import Store
from pipeline.clock import wall_ms
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import PipelineError

OVERLOADS: Final = (1.2, 1.5, 2.0, 5.0, 10.0, 20.0, 50.0)
_BACK_MS: Final = 3_600_000
_LEAD_MS: Final = 1_000
_LAG_MS: Final = 200


@dataclass(frozen=True)
class Amounts:
    """How much of everything.

    Attributes:
        events: of a backlog.
        clients: distinct `<user, client-id>` pairs.
        rounds: warm backlogs of each peer.
        events_per_second: of the steady load.
        warm_seconds: of the steady load before the first probe.
        seconds: of probes.
        native_seconds: of each run against the broker's quotas.
        hours: simulated.
    """

    events: int
    clients: int
    rounds: int
    events_per_second: int
    warm_seconds: float
    seconds: float
    native_seconds: float
    hours: float

    def __str__(self) -> str:
        """What was measured, in sentences."""
        return (
            f"Backlogs of {self.events:,} events of {self.clients:,} clients, median of {self.rounds} warm ones. "
            f"Steady load: {self.events_per_second:,} events a second, {self.seconds:g} s of probes. "
            f"Quotas of the broker: {self.native_seconds:g} s; {self.hours:g} h simulated."
        )


@dataclass(frozen=True)
class Stage:
    """One thing to measure.

    Attributes:
        name: of the file and on the command line.
        asked: the amounts that matter to it.
        run: measures, and gives what is kept.
    """

    name: str
    asked: dict[str, Any]
    run: Callable[[], dict[str, Any]]


class Stages:
    """All stages.

    Args:
        amounts: of everything.
    """

    def __init__(self, amounts: Amounts) -> None:
        self._amounts = amounts

        self._backlogs: dict[float, Backlog] = {}

    def _backlog(self, part: float) -> Backlog:
        if part not in self._backlogs:
            start_ms = (wall_ms() - _BACK_MS) // 1000 * 1000
            self._backlogs[part] = Backlog.build(round(self._amounts.events * part), self._amounts.clients, start_ms)
        return self._backlogs[part]

    def all(self) -> list[Stage]:
        """In the order in which they run. Peers take turns in each shape, so that a slow hour meets all of them."""
        told = asdict(self._amounts)
        caught = {name: told[name] for name in ("events", "clients", "rounds")}
        loaded = {name: told[name] for name in ("clients", "events_per_second", "warm_seconds", "seconds")}
        stages = [
            Stage(catch_up_name(peer, shape), caught, self._catch_up(peer, shape)) for shape in SHAPES for peer in PEERS
        ]
        stages += [Stage(steady_name(peer), loaded, self._steady(peer)) for peer in PEERS if peer.is_durable]
        limits = {name: told[name] for name in ("native_seconds", "hours")}
        return [*stages, Stage("quotas", {**limits, **loaded}, self._quotas)]

    def _catch_up(self, peer: Peer, shape: Shape) -> Callable[[], dict[str, Any]]:
        def run() -> dict[str, Any]:
            return self._at_a_place(
                peer, shape, lambda place: catch_up(peer, place, self._backlog(peer.part), self._amounts.rounds)
            )

        return run

    def _steady(self, peer: Peer) -> Callable[[], dict[str, Any]]:
        amounts = self._amounts
        load = SteadyLoad(amounts.events_per_second, amounts.clients, amounts.warm_seconds, amounts.seconds)

        def run() -> dict[str, Any]:
            return self._at_a_place(peer, "object", lambda place: steady(peer, place, load))

        return run

    def _at_a_place(self, peer: Peer, shape: Shape, measure: Callable[[Place], Any]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="kquota-peers-", ignore_cleanup_errors=True) as folder:
            own = Path(folder) / "peer"
            own.mkdir()
            with EmbeddedBroker(Path(folder) / "broker") as broker:
                place = Place(broker.bootstrap_servers, own, "peer", shape)
                place.create_topics()
                try:
                    return asdict(measure(place))
                except (PeerFailed, PeerMissing, PipelineError) as failure:
                    return {"failure": str(failure)}

    def _quotas(self) -> dict[str, Any]:
        amounts = self._amounts
        with tempfile.TemporaryDirectory(prefix="kquota-peers-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            native = {
                str(brokers): long_run(folder / f"brokers-{brokers}", brokers, OVERLOADS, amounts.native_seconds)
                for brokers in (1, 2)
            }
            slowed_ms = first_slowed_ms(folder / "first")
            told_ms = first_told_ms(
                folder / "told", amounts.events_per_second, amounts.clients, amounts.warm_seconds, amounts.seconds
            )
        return {"native": native, "slowed_ms": slowed_ms, "told_ms": told_ms, "kquota": simulated(amounts.hours)}


def simulated(hours: float) -> dict[float, float]:
    """Rate ÷ T of an offender that obeys kquota, for each k; see `bench.closed_loop`. Brokers do not matter to it."""
    chosen = [one for one in offenders((_LAG_MS,)) if one.cap == "window"]
    Loop(_LEAD_MS, True, chosen).run(hours)
    return {one.overload: one.mean_ratio for one in chosen}


def catch_up_name(peer: Peer, shape: Shape) -> str:
    """Of the stage."""
    return f"catch-up {peer.name} {shape}"


def steady_name(peer: Peer) -> str:
    """Of the stage."""
    return f"steady {peer.name}"


def measured(stages: Sequence[Stage], store: Store, only: str, *, afresh: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run what is not known yet. Gives the name and the measurement of each stage, as soon as it is there.

    What could not be measured is not kept, so that it is tried again.

    Args:
        stages: in their order.
        store: of what was measured.
        only: pattern of the names to run; others are given if they are known.
        afresh: whether to run what is known, too.
    """
    for stage in stages:
        is_wanted = re.search(only, stage.name) is not None
        known = None if is_wanted and afresh else store.known(stage.name, stage.asked)
        if known is None and is_wanted:
            run = stage.run()
            known = run if "failure" in run else store.keep(stage.name, stage.asked, run)
        if known is not None:
            yield stage.name, known
