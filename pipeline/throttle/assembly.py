"""The one place that wires engine, decider, publisher, purgatory and ledger to each other.

The job, the simulation, the closed-loop benchmark and the tests of faults all call `assemble`, so what is proven of one
holds for the others. Assembling changes nothing outside: `ThrottlePurgatory.take_over` is the step that takes up
stored throttles and fences an earlier publisher.
"""

from dataclasses import dataclass

from pipeline.clock import Clock
from pipeline.settings.model import EngineSettings, Settings
from pipeline.throttle.decider import Decider
from pipeline.throttle.publisher import Announce, Outbox, Publisher, Publishing, ThrottleTopic
from pipeline.throttle.purgatory import RenewLead, ThrottlePurgatory
from quota.engine import QuotaEngine, Scope
from quota.throttle_time import Slicing


@dataclass(frozen=True, slots=True)
class Ports:
    """What decisions and throttles meet of the outside world."""

    outbox: Outbox
    topic: ThrottleTopic
    clock: Clock
    announce: Announce = lambda _records, _quota_version: None


@dataclass(frozen=True, slots=True)
class Enforcement:
    """The half that decides and the half that holds, wired to each other."""

    decider: Decider
    purgatory: ThrottlePurgatory


def assemble(settings: Settings, scope: Scope, cluster: str, ports: Ports) -> Enforcement:
    """Build the graph; nothing is read, written or started.

    * `scope`: Of the quotas: sums over all brokers, or one per broker.
    """
    publisher = Publisher(settings.job, cluster, ports.outbox, ports.topic, ports.announce)
    return enforcement_of(settings, scope, cluster, publisher, ports.clock)


def enforcement_of(settings: Settings, scope: Scope, cluster: str, publisher: Publishing, clock: Clock) -> Enforcement:
    """As `assemble`, with what records are written by."""
    decider = Decider(new_engine(settings.engine, scope), cluster)
    purgatory = ThrottlePurgatory(
        decider=decider,
        publisher=publisher,
        slicing=_slicing(settings),
        lead=_lead(settings),
        clock=clock,
    )
    return Enforcement(decider, purgatory)


def new_engine(settings: EngineSettings, scope: Scope) -> QuotaEngine:
    """An engine that has recorded nothing."""
    return QuotaEngine(
        num_samples=settings.num_samples,
        sample_window_ms=settings.sample_window_ms,
        max_throttle_time=settings.throttle_caps(),
        scope=scope,
        carry_debt=settings.carry_debt,
    )


def _slicing(settings: Settings) -> Slicing:
    return Slicing(
        lead_ms=settings.purgatory.min_renew_lead_ms,
        min_hold_ms=settings.purgatory.min_hold_ms,
        caps=settings.engine.throttle_caps(),
        sample_window_ms=settings.engine.sample_window_ms,
    )


def _lead(settings: Settings) -> RenewLead:
    return RenewLead(settings.stream.trigger_ms, settings.purgatory.client_lag_ms, settings.purgatory.min_renew_lead_ms)
