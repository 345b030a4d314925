"""One life of a job by seed: random trouble in logical time, and what must hold whatever happens.

The same seed gives the same life, to the last byte of its trace.
"""

import copy
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pipeline.errors import ClusterUnreachable, Conflict, PipelineError, TransactionFenced
from pipeline.failpoints import FAILPOINTS, Failpoint, FailpointReached
from pipeline.tables.port import TableUnwritable, TableWriter
from pipeline.tables.quotas.edit import QuotaChange
from quota.entity import DEFAULT
from tests.faults.evidence import TABLES, Evidence
from tests.faults.generator import OFFENDERS, RATES, Content
from tests.faults.hand_job import HandJob, Pause, armed
from tests.faults.rig import AUDIT, edit_team
from tests.faults.verifier import verify
from tests.lives.clients import CALM, STEADY, Clients
from tests.lives.laws import accounts, check_holds, check_ledger

_HOUR_MS: Final = 3_600_000
_REST_STEPS: Final = 600
_WITHOUT_A_LOCK: Final = (
    *("sensor_state.appended", "batch.pinned", "batch.collected", "batch.decided"),
    *("decisions.appended", "batches.appended", "batch.published"),
)
"""Failpoints of a batch at which other threads of the driver may go on."""


class LivedJob(HandJob):
    """A job by hand, with tables that fail; in memory without a folder.

    Attributes:
        faults: The tables of which the next append or new epoch fails once: "before" it is stored, or "after".
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.faults: dict[str, str] = {}
        super().__init__(folder, RATES)

    def _open_writer(self, name: str) -> TableWriter:
        writer = super()._open_writer(name)
        for act in ("append", "raise_epoch"):
            setattr(writer, act, self._may_fail(name, getattr(writer, act)))
        return writer

    def _may_fail(self, name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def acted(*what: Any) -> Any:
            fault = self.faults.pop(name, None)
            if fault == "before":
                raise TableUnwritable(name, "no space left on device")
            outcome = act(*what)
            if fault == "after":
                raise TableUnwritable(name, "the answer was lost")
            return outcome

        return acted


@dataclass
class Lived:
    """What a life came to: how long it was, what happened how often, what was compared, what was wrong, its trace."""

    seed: int
    logical_ms: int
    happened: Counter[str]
    compared: Counter[str]
    found: list[str]
    trace: str


@dataclass
class Life:
    """A job, its clients and its trouble.

    Attributes:
        folder: For its tables; None: all are in memory, which is many times as fast.
    """

    seed: int
    hours: float
    folder: Path | None = None
    happened: Counter[str] = field(default_factory=Counter)
    found: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._content = Content(self.seed, garbage_share=0.05, skew_ms=2_000)
        self._job = LivedJob(self.folder)
        self._steps_clocks = self._random.random() < 0.4
        job, own = self._job, dict(RATES)
        job.quota_table.alter([QuotaChange(user, "", own) for user in STEADY], AUDIT)
        self._clients = Clients(random.Random(self.seed), job.clock, job.broker, self.happened)
        self._late: list[dict[str, Any]] = []
        self._is_dead = self._may_be_fenced = False
        self._idle_ms = 0

    def run(self) -> Lived:
        """Live; then come to rest without trouble, and be judged."""
        self._job.start()
        began_ms = self._job.clock.steady_ms
        while self._job.clock.steady_ms - self._idle_ms < began_ms + self.hours * _HOUR_MS:
            self._live()
            if self._is_dead or self._random.random() < 0.3:
                self._start_again()
        self._come_to_rest()
        evidence = self._job.evidence()
        rules = self._job.rules
        if self.happened["a take-over that failed"]:  # meanwhile a publishing may have taken long: the lead has grown
            rules = replace(rules, most_lead_ms=None)
        verdict = verify(evidence, rules)
        found = [*self.found, *(text for gate in self._clients.gates for text in gate.found), *verdict.told()]
        found += check_holds(self._job.broker.records, () if self._steps_clocks else CALM)
        debts = accounts(evidence, self._job.settings.engine, STEADY, self.happened)
        found += [text for account in debts for text in account.found]
        compared = verdict.compared + Counter(gates=sum(gate.compared for gate in self._clients.gates))
        compared["debts by the integral"] = sum(account.compared for account in debts)
        logical_ms = self._job.clock.steady_ms - began_ms
        return Lived(self.seed, logical_ms, self.happened, compared, found, self._trace(evidence))

    # Time.

    def _step(self, passes_ms: int) -> None:
        """Time passes, in which clients use; then the job runs its trigger."""
        self._pass(passes_ms)
        self._report()
        self._run(self._job)
        self.found += check_ledger(self._job)

    def _run(self, job: LivedJob) -> None:
        """One trigger of a driver. When another driver takes over meanwhile, this one must write nothing more."""
        try:
            job.step()
        except PipelineError:
            if job is self._job:
                raise
        if job is not self._job:
            self._expect_silence(job)

    def _pass(self, passes_ms: int) -> None:
        longest_ms = max(passes_ms // 5, 200)
        while passes_ms > 0:
            slice_ms = min(passes_ms, longest_ms)
            passes_ms -= slice_ms
            self._job.clock.advance(slice_ms)
            self._clients.turn(slice_ms, self._job.broker_ms)

    def _report(self) -> None:
        """The meters send what was used; now and then later, or never. Others send garbage, too."""
        events, draw = self._clients.take(), self._random.random()
        if draw < 0.1:
            self._count("usage is late")
            self._late += events
            events = []
        elif draw < 0.14:
            self._count("usage is lost")
            events = []
        elif self._late and draw < 0.4:
            events, self._late = [*self._late, *events], []
        if events:
            self._job.send(json.dumps(events).encode())
        self._job.send(*(self._content.message(self._job.broker_ms) for _ in range(2)))

    def _count(self, what: str) -> None:
        self.happened[what] += 1

    # Trouble.

    def _live(self) -> None:
        """A driver runs for a while, under trouble; perhaps it dies at a failpoint, or stands still there too long."""
        point, nth = self._random.choice(list(FAILPOINTS)), self._random.choice((1, 1, 2, 5))
        draw = self._random.random()
        if draw < 0.25:
            trouble: Failpoint | Pause | None = Pause(point, nth, lambda: self._let_another_take_over(point))
        elif draw < 0.5:
            point = self._random.choice(_WITHOUT_A_LOCK)
            trouble = Pause(point, nth, lambda: self._let_other_threads_run(point))
        else:
            trouble = Failpoint(f"{point}:{nth}:raise")
        with armed(trouble), self._may_die():
            for _ in range(self._random.randrange(3, 12)):
                if self._random.random() < 0.4:
                    self._random.choice(self._troubles)()
                # Most of a batch of many seconds is late: its usage gets into the buckets and not into the windows.
                self._step(self._random.choice((200, 200, 200, 200, 600, 1_000, 3_000, 20_000)))

    @contextmanager
    def _may_die(self) -> Iterator[None]:
        try:
            yield
        except FailpointReached as exc:
            self._count(f"kill at {exc.message.split()[1]}")
        except TableUnwritable:
            self._count("death by a store error")
        except (Conflict, TransactionFenced):
            if not self._may_be_fenced:
                raise
            self._count("death by a take-over that failed")
        else:
            return
        self._is_dead = True

    def _start_again(self) -> None:
        """Start after some time. Perhaps the checkpoint is gone; perhaps the job dies again during its start."""
        keeps_checkpoint = self._random.random() < 0.8 or self._may_repeat_letters()
        for _ in range(8):
            self._pass(self._random.choice((300, 300, 2_000, 9_000, 70_000)))
            if self._random.random() < 0.3:
                self._edit()
            point = self._random.choice([name for name in FAILPOINTS if name.startswith("start.")])
            dies = self._random.random() < 0.2
            with armed(Failpoint(f"{point}:1:raise") if dies else None), self._may_die():
                try:
                    self._start(keeps_checkpoint)
                except ClusterUnreachable:
                    self._count("start without a broker")
                else:
                    return
            self._job.broker.is_reachable = self._random.random() < 0.7
        self._job.broker.is_reachable = True
        self._job.faults.clear()
        self._start(keeps_checkpoint)

    def _may_repeat_letters(self) -> bool:
        """The only thing that a lost checkpoint may repeat: dead letters of a batch whose usage was not stored yet."""
        query_id, writers = self._job.spark.query_id, self._job.tables.writers
        versions = (writers[name].recorded_version(query_id) for name in ("dead_letters", "usage", "batches"))
        letters, usage, batches = (-1 if version is None else version for version in versions)
        return letters > max(usage, batches)

    def _start(self, keeps_checkpoint: bool) -> None:
        self._job.start(with_checkpoint=keeps_checkpoint)
        self._is_dead = self._may_be_fenced = False
        self._count("start" if keeps_checkpoint else "start without its checkpoint")

    @property
    def _troubles(self) -> list[Callable[[], None]]:
        """Each is as likely as it is often here."""
        usual = [self._edit, self._edit, self._fail_transaction, self._fail_transaction, self._lose_broker]
        usual += [self._lose_marker, self._fail_a_store, self._clients.change_one, self._clients.change_one]
        usual += [self._clients.trouble_a_gate, self._be_idle]
        return [*usual, self._set_clocks] if self._steps_clocks else usual

    def _edit(self) -> None:
        draw = self._random.random()
        factor = self._random.choice((0.5, 1.0, 2.0))
        values: dict[str, Any] = {name: rate * factor for name, rate in RATES.items()}
        offender = f"offender-{self._random.randrange(OFFENDERS)}"
        if draw < 0.15:
            self._count("forgiveness of an offender")
            self._job.forgive(offender, self._random.choice(("", "", DEFAULT)))
        elif draw < 0.3:
            self._count("forgiveness of a client with a quota of its own")
            self._job.forgive(self._random.choice(STEADY))
        elif draw < 0.5:
            self._count("edit of a tenant")
            edit_team(self._job.tenant_table, self._random)
        elif draw < 0.65:
            self._count("edit of a user's quota")
            self._job.quota_table.alter([QuotaChange(self._random.choice(STEADY), "", values)], AUDIT)
        elif draw < 0.8:
            self._count("edit of a client-id's quota")
            entity = offender, self._random.choice(("app", "etl", DEFAULT))
            is_there = entity in {(row["user"], row["client_id"]) for row in self._job.quota_table.read().rows}
            mode = self._random.choice(("enforce", "enforce", "shadow", "exempt"))
            own = {"mode": mode} if mode == "exempt" else {**values, "mode": mode}
            change = QuotaChange(*entity, remove=True) if is_there else QuotaChange(*entity, own)
            self._job.quota_table.alter([change], AUDIT)
        else:
            self._count("edit of the default quota")
            self._job.edit(values)

    def _fail_transaction(self) -> None:
        """The next one; the one that is in flight, if any, is done or aborted without the driver."""
        self._job.broker.settle(commits=self._random.random() < 0.5)
        how = self._random.choice(("lost", "late", "in flight", "in flight"))
        self._count(f"transaction {how}")
        self._job.topic.fail_next = how

    def _lose_broker(self) -> None:
        self._job.broker.is_reachable = self._random.random() < 0.4
        self._count("broker is there" if self._job.broker.is_reachable else "broker is away")

    def _lose_marker(self) -> None:
        if self._job.broker.records:
            self._count("marker is lost")
            self._job.broker.marker = None

    def _fail_a_store(self) -> None:
        name = self._random.choice(TABLES)
        self._job.faults[name] = self._random.choice(("before", "after"))
        self._count(f"store error {self._job.faults[name]} {name}")

    def _set_clocks(self) -> None:
        self._count("clocks are set")
        by_ms = self._random.choice((-3_600_000, -60_000, -5_000, -300, 300, 5_000, 60_000))
        driver, broker = self._random.choice(((1, 1), (1, 0), (0, 1)))
        self._job.set_clocks(driver * by_ms, broker * by_ms)

    def _be_idle(self) -> None:
        """No client uses anything for minutes, or for more than an hour, and the job goes on."""
        self._count("idle minutes")
        longest_ms = self._random.choice((60_000, 60_000, 60_000, _HOUR_MS))
        for _ in range(self._random.randrange(3, 12)):
            due_ms, now_ms = self._job.purgatory.next_due_ms(), self._job.clock.steady_ms
            passes_ms = longest_ms if due_ms is None else min(max(due_ms - now_ms, 100), longest_ms)
            self._idle_ms += passes_ms
            self._job.clock.advance(passes_ms)
            for gate in self._clients.gates:
                gate.turn()
            self._run(self._job)
            self._job.decider.expire_idle()
            if self._is_dead:
                return

    def _let_other_threads_run(self, point: str) -> None:
        """An edit comes into force, and throttles that are due are checked, while a batch is at this point."""
        self._count(f"edit and check at {point}")
        self._edit()
        self._job.clock.advance(self._random.choice((0, 50, 400)))
        self._job.quotas.poll()
        self._job.purgatory.quotas_changed(self._job.quotas.pin())
        self._job.purgatory.tick()

    def _let_another_take_over(self, point: str) -> None:
        """A second driver starts on another machine, without the checkpoint, while the first stands still."""
        first, second = self._job, copy.copy(self._job)
        if self._may_repeat_letters():
            return
        with armed(None):
            self._pass(self._random.choice((200, 2_000)))
            try:
                second.start(with_checkpoint=False)
            except (TableUnwritable, ClusterUnreachable):
                self._count("a take-over that failed")
                self._may_be_fenced = True
                return
            self._count(f"take-over at {point}")
            self._job = second
            if self._random.random() < 0.7:
                with self._may_die():
                    self._step(200)
        self._left_behind = _sizes(first)

    def _expect_silence(self, first: LivedJob) -> None:
        """A driver that was taken over is refused, and has written nothing."""
        for act in (lambda: None, first.purgatory.tick, first.step):
            with suppress(PipelineError):
                act()
            sizes = _sizes(first)
            if sizes != self._left_behind:
                self.found.append(f"silence: a driver that was taken over wrote {sizes}, before {self._left_behind}")
        self._count("a driver that was taken over is silent")

    # The end.

    def _come_to_rest(self) -> None:
        """No trouble any more, until every throttle has ended."""
        self._job.broker.is_reachable = True
        self._job.faults.clear()
        self._pass(300)
        self._start(keeps_checkpoint=True)
        self._job.send(b"[]")  # a batch follows whatever was cut short
        for gate in self._clients.gates:
            gate.is_cut = False
        for one in self._clients.members:
            one.is_active = False
        for number in range(_REST_STEPS):
            due_ms, now_ms = self._job.purgatory.next_due_ms(), self._job.clock.steady_ms
            self._job.clock.advance(200 if due_ms is None else max(due_ms - now_ms, 50))
            self._job.topic.fail_next = None
            self._job.step()
            for gate in self._clients.gates:
                gate.turn()
            if number > 2 and not len(self._job.purgatory):
                return
        self.found.append(f"rest: {len(self._job.purgatory)} throttles do not end")

    def _trace(self, evidence: Evidence) -> str:
        """A hash of all that was published and stored, rows of a table in no order, and of what happened."""
        digest = hashlib.blake2b(digest_size=8)
        for rows in (evidence.records, *(sorted(map(repr, rows)) for rows in evidence.tables.values())):
            digest.update(repr(rows).encode())
        digest.update(repr(sorted(self.happened.items())).encode())
        return digest.hexdigest()


def _sizes(job: LivedJob) -> tuple[int, ...]:
    return (len(job.broker.records), *(job.rows(name, ["cluster"]).num_rows for name in TABLES))
