"""One period of the sync after the other: read what is new, compare the brokers, change what must change."""

import logging

from pipeline.clock import Clock
from pipeline.sync.change_writer import ChangeWriter
from pipeline.sync.cluster_quotas import ClusterQuotas
from pipeline.sync.present_brokers import PresentBrokers
from pipeline.sync.sources import Sources
from pipeline.sync.telling import Telling
from pipeline.tables.brokers.quotas import BrokerQuotasTable
from quota.broker_sync import BrokerSync
from quota.broker_writes import Change

log = logging.getLogger(__name__)


class BrokerQuotaSync:
    """Keeps the quotas of one cluster's brokers. One caller at a time.

    Args:
        control: Says what to write; nothing is loaded or recorded yet.
        sources: What is followed.
        table: Where every change is stored.
        cluster: The brokers.
        clock: All is timed in steady time; its wall clock dates the rows of the table.
        describe_every_ms: How often the brokers are compared.
    """

    def __init__(
        self,
        control: BrokerSync,
        sources: Sources,
        table: BrokerQuotasTable,
        cluster: ClusterQuotas,
        clock: Clock,
        describe_every_ms: int,
    ) -> None:
        self._control = control
        self._sources = sources
        self._cluster = cluster
        self._writer = ChangeWriter(table, cluster, clock)
        self._clock = clock
        self._describe_every_ms = describe_every_ms
        self._brokers = PresentBrokers()
        self._telling = Telling()
        self._known_until_ms = 0
        self._look_due_ms = 0

    def take_over(self) -> None:
        """Fence an earlier sync, and take over what it owned.

        Raises:
            Fenced: Another one started at the same moment.
        """
        state, quotas = self._writer.take_over(), self._sources.quotas.pin()
        self._control.restore_owned(state.owned, state.undecided, self._now())
        self._control.load_quotas(quotas, self._sources.mirror)
        log.info(
            "quotas v%d: %d entities; values that are kquota's on the brokers: %d, undecided: %d",
            quotas.version,
            len(quotas.quotas),
            len(state.owned),
            len(state.undecided),
        )

    def step(self) -> int:
        """One period. Returns how many changes the brokers took.

        Raises:
            PipelineError: A table or the cluster can not be read or written. The next call goes on with what is left.
        """
        snapshot = self._sources.quotas.poll()
        if snapshot is not None:
            self._control.load_quotas(snapshot, self._sources.mirror)
            scope = "broker" if self._sources.mirror else "cluster"
            log.info("quotas v%d in force: %d entities, scope %s", snapshot.version, len(snapshot.quotas), scope)
        self._follow_usage()
        if self._writer.has_undecided or self._now() >= self._look_due_ms:
            self._look()
        taken = self._write(self._control.period(self._known_until_ms, self._now()))
        self._telling.obstacles(self._control)
        return taken

    def restore(self) -> int:
        """Put T in place of every lower level. Returns how many changes the brokers took.

        Raises:
            PipelineError: As for `step`.
        """
        return self._write(self._control.restore())

    def _follow_usage(self) -> None:
        """Record what is new."""
        usage = self._sources.usage()
        rows = None if usage is None else usage.new_rows()
        if usage is None or rows is None:
            return
        if usage.has_begun_anew:
            self._control.begin_epoch(usage.known_until_ms)
        self._control.record(rows)
        self._known_until_ms = usage.known_until_ms

    def _look(self) -> None:
        """Compare with what the brokers hold. It is known then what became of changes without an answer."""
        self._look_due_ms = 0  # unless all of it goes well
        found, now_ms = self._cluster.look(), self._now()
        self._control.set_brokers(self._brokers.seen(found.broker_ids, now_ms), now_ms)
        self._control.observe(self._writer.with_taken(found.held), now_ms)
        if self._writer.has_undecided:
            self._writer.settle(self._control.owned)
        self._writer.refuse_fenced()
        self._look_due_ms = self._now() + self._describe_every_ms

    def _write(self, changes: list[Change]) -> int:
        if not changes:
            return 0
        written = self._writer.write(changes)
        self._control.confirm(written.taken, written.at_ms)
        for change, reason in written.refused:
            self._control.refuse(change, reason, written.at_ms)
        self._telling.changes(written)
        return len(written.taken)

    def _now(self) -> int:
        return self._clock.now().steady_ms
