"""What other quotas would have done, and what an edit would do now.

A range of stored usage is replayed by the job's own decider and purgatory, once for each version of the quotas; the
replays are compared client by client.
"""

import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Literal, Self

import numpy as np
import pyarrow as pa

from pipeline.errors import TableMissing, UsageError
from pipeline.replay.request import ReplayRequest, Start, Timeline, slice_length_ms, usage_not_kept
from pipeline.replay.usage_batches import HeldSpans, HeldTimes, Outcome, ReplayResult, UsageBatch, UsageReader
from pipeline.settings.model import Settings
from pipeline.tables.port import table_uri
from pipeline.tables.queries import StoredTable, live_clients, recent_usage, split_range
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.quotas.table import QuotaTable, TableEdit
from pipeline.tables.quotas.tenants import TENANT_ROWS, new_patterns
from pipeline.throttle.assembly import Rehearsal, new_engine
from pipeline.throttle.shapes import Publications, int64s
from quota.arrays import Ints
from quota.decisions import USAGE_COLUMNS
from quota.effective import bound_warnings, name_warnings, pattern_warnings, standing_changes
from quota.entity import QUOTA_TYPES
from quota.rates import is_on_windows
from quota.snapshot import QuotaSnapshot
from quota.tenants import read_tenants
from schemas.names import ClientKey
from schemas.throttle_record import Target

Progress = Callable[[int, int], None]
"""Called with how many slices are done and how many there are."""


def run(request: ReplayRequest, progress: Progress, slice_ms: int | None = None) -> list[ReplayResult]:
    """All replays of a range: rates, buckets, and every throttle with its checks and renewals.

    A throttle depends on all usage before it, so the whole range is replayed in order. The usage is read once for all
    replays, in slices of about `slice_ms` (None = `slice_length_ms`), so that memory does not grow with the range.

    Raises:
        UsageError: The source has one row per second, and the sample windows are not whole seconds.
        TableMissing: The root has no such table.
        NotFound: The range has no usage.
    """
    request.refuse_divided_seconds()
    reader = UsageReader(request)
    if slice_ms is None:
        rows = reader.table.estimated_rows(request.begin_ms, request.until_ms)
        slice_ms = slice_length_ms(request.until_ms - request.begin_ms, rows)
    slices = [*split_range(request.begin_ms, request.until_ms, slice_ms)]
    replays = [_Replay(request, quotas, reader) for quotas in request.quotas]
    for done, (start_ms, end_ms) in enumerate(slices, 1):
        batches = [*reader.read(start_ms, end_ms)]
        for replay in replays:
            replay.decide(batches)
        progress(done, len(slices))
    found = [replay.result() for replay in replays]
    if not found or not found[0].evaluations:
        raise usage_not_kept(reader.table.uri)
    return found


class _Replay:
    """One replay, with quotas of its own. Batches up to the start of the request only fill the sample windows.

    The usage does not react to the records: it is what was stored, even where a client would have waited. Usage after
    the beginning of a throttle and before its end counts as deferred.
    """

    def __init__(self, request: ReplayRequest, quotas: Timeline, reader: UsageReader) -> None:
        self._reader = reader
        self._start = request.start
        self._since_ms, self._until_ms = request.since_ms, request.until_ms
        self._window_ms = request.settings.engine.sample_window_ms
        self._quotas = quotas
        self._holds = HeldSpans()
        self._job = Rehearsal(request.settings, request.scope, self._hear)
        self._has_begun = False
        self._result = ReplayResult()
        # By the number of a client: the sample windows in which it was over quota, the last of them, deferred bytes.
        self._windows, self._deferred_bytes = Counter[int](), Counter[int]()
        self._last_window: dict[int, int] = {}

    def decide(self, batches: Sequence[UsageBatch]) -> None:
        """Decide batches, with the checks before each."""
        for batch in batches:
            self._decide(batch)
        if batches and self._holds.spans:
            self._defer(batches)

    def result(self) -> ReplayResult:
        """What it found; no batch may follow."""
        if self._has_begun:
            self._job.wait_until(self._until_ms - 1)
        times, numbers = HeldTimes(self._holds, self._since_ms, self._until_ms), self._reader.numbers
        held = (ClientKey(*one[:2], one.client_id) for one in self._holds.spans if one.client_id is not None)
        for client in {*numbers, *held}:
            number = numbers.get(client, -1)
            outcome = Outcome(self._windows[number], times.ms_of(client), self._deferred_bytes[number])
            self._result.outcomes[client] = outcome
        return self._result

    def _decide(self, batch: UsageBatch) -> None:
        evaluation, job = batch.evaluation, self._job
        at_ms, start = evaluation.evaluated_at_ms, self._start
        snapshot = self._snapshot_of(batch)
        if start is not None and (at_ms, evaluation.batch_id) > (start.at_ms, start.batch_id):
            self._take_up(start, snapshot)
            self._start = start = None
        elif start is None and not self._has_begun:
            job.begin(at_ms)
            self._has_begun = True
        job.wait_until(at_ms)
        job.put_in_force(snapshot)
        decided = job.decide(batch.usage, evaluation, holds=start is None and not batch.is_old)
        self._result.rows += len(batch.clients)
        if self._since_ms <= at_ms < self._until_ms:
            self._result.evaluations += 1
            if start is None:
                self._violate(np.unique(batch.clients[decided.held_rows]).tolist(), at_ms // self._window_ms)

    def _violate(self, clients: Sequence[int], window: int) -> None:
        """Count the sample window of clients that are over quota, each once."""
        for client in clients:
            self._windows[client] += self._last_window.get(client) != window
            self._last_window[client] = window

    def _defer(self, batches: Sequence[UsageBatch]) -> None:
        """Add up what clients used in these batches while they were held.

        A record counts from its own instant on, so later ones change nothing for these batches.
        """
        clients = np.concatenate([batch.clients for batch in batches])
        used_at_ms = np.concatenate([batch.usage.last_ms for batch in batches])
        used_bytes = np.concatenate([batch.used_bytes for batch in batches])
        # What is used in the first millisecond of a throttle came before its record.
        times = HeldTimes(self._holds, max(int(used_at_ms.min()), self._since_ms) - 1, self._until_ms)
        order = np.argsort(clients, kind="stable")
        numbers, first = np.unique(clients[order], return_index=True)
        names = [*self._reader.numbers]
        for number, rows in zip(numbers.tolist(), np.split(order, first[1:]), strict=True):
            if held := times.of(names[number]):
                starts_ms, ends_ms = np.array(held).T
                last = np.searchsorted(starts_ms, used_at_ms[rows]) - 1
                waits = (last >= 0) & (used_at_ms[rows] < ends_ms[last])
                self._deferred_bytes[number] += int(used_bytes[rows][waits].sum())

    def _hear(self, publications: Publications, at_ms: Ints) -> None:
        rows = zip(
            publications.clients.to_pylist(),
            publications.excepted,
            publications.claims.quota_type.tolist(),
            publications.holds.tolist(),
            publications.throttle_time_ms.tolist(),
            at_ms.tolist(),
            strict=True,
        )
        for names, excepted, quota_type, holds, throttle_time_ms, instant_ms in rows:
            target = Target.of({**names, "quota_type": QUOTA_TYPES[quota_type]})
            self._holds.hear(target, instant_ms, throttle_time_ms if holds else None, excepted or ())

    def _snapshot_of(self, batch: UsageBatch) -> QuotaSnapshot:
        evaluation = batch.evaluation
        is_stored = evaluation.quota_version >= 0
        return self._quotas.of(evaluation.versions) if is_stored else self._quotas.at(evaluation.evaluated_at_ms)

    def _take_up(self, start: Start, snapshot: QuotaSnapshot) -> None:
        """Go on from a start, after the batches up to it and before the first one after it."""
        if not self._result.rows:
            self._job.put_in_force(snapshot)
        rows = start.throttles
        for row in rows.to_pylist():
            self._holds.hear_row(row, row["evaluated_at_ms"])
        # The clock that they were written on is not that of the usage.
        until_ms = pa.array(int64s(rows, "evaluated_at_ms") + int64s(rows, "throttle_time_ms"))
        running = rows.set_column(rows.schema.get_field_index("throttled_until_ms"), "throttled_until_ms", until_ms)
        self._job.begin(start.at_ms, running, start.buckets)
        self._has_begun = True


# The replay of a candidate compared with a baseline: per client, in total, and by `--fail-if`.


MOST_OFF_PERCENT: Final = 5.0
Change = Literal["newly throttled", "no longer throttled", "longer", "shorter", "same"]

_NOTHING = Outcome()


@dataclass(frozen=True, slots=True)
class ClientComparison:
    """One client: what happened to it, and what the replays of that, of the baseline and of the candidate found."""

    client: ClientKey
    happened: Outcome
    again: Outcome
    baseline: Outcome
    candidate: Outcome

    @property
    def off_percent(self) -> float:
        """How far the replay of what happened is from what happened: of the longer of the two times held."""
        longer_ms = max(self.happened.throttle_ms, self.again.throttle_ms)
        return 100 * abs(self.happened.throttle_ms - self.again.throttle_ms) / longer_ms if longer_ms else 0.0

    @property
    def is_off(self) -> bool:
        """Whether it is so far off that the line is not to be relied on."""
        return self.off_percent > MOST_OFF_PERCENT

    @property
    def change(self) -> Change:
        """How the replay with the candidate differs from that of the baseline."""
        if bool(self.baseline.windows) != bool(self.candidate.windows):
            return "newly throttled" if self.candidate.windows else "no longer throttled"
        if self.baseline.throttle_ms == self.candidate.throttle_ms:
            return "same"
        return "longer" if self.candidate.throttle_ms > self.baseline.throttle_ms else "shorter"

    @property
    def throttle_change_ms(self) -> int:
        """The time that the candidate holds the client longer than the baseline; negative = shorter."""
        return self.candidate.throttle_ms - self.baseline.throttle_ms

    def to_row(self) -> dict[str, Any]:
        """One flat row for printing; times in seconds."""
        broker_id, user, client_id = self.client
        return {
            **({"broker_id": broker_id} if broker_id else {}),
            "user": user,
            "client_id": client_id,
            "change": self.change,
            "windows_baseline": self.baseline.windows,
            "windows_candidate": self.candidate.windows,
            "throttle_seconds_baseline": self.baseline.throttle_ms / 1000,
            "throttle_seconds_candidate": self.candidate.throttle_ms / 1000,
            "bytes_deferred_baseline": self.baseline.deferred_bytes,
            "bytes_deferred_candidate": self.candidate.deferred_bytes,
            "windows_happened": self.happened.windows,
            "throttle_seconds_happened": self.happened.throttle_ms / 1000,
            "replay_off_percent": round(self.off_percent, 1),
            "is_off": self.is_off,
        }


@dataclass(frozen=True, slots=True)
class Totals:
    """All clients together. `--fail-if` can use each of these figures.

    Attributes:
        newly_throttled: Of these, clients that the baseline does not throttle.
        windows_throttled: Sample windows in which a client is over the candidate, summed over clients.
        throttle_seconds: Time that clients would be held, summed over clients; its change is against the baseline.
        bytes_deferred: Bytes that clients used while they would have been held; its change likewise.
    """

    clients: int
    throttled: int
    newly_throttled: int
    no_longer_throttled: int
    windows_throttled: int
    throttle_seconds: float
    throttle_seconds_change: float
    bytes_deferred: int
    bytes_deferred_change: int


def compare(
    again: ReplayResult, baseline: ReplayResult, candidate: ReplayResult, happened: Mapping[ClientKey, Outcome]
) -> list[ClientComparison]:
    """Every client in any of the four; the largest change of throttle time first, then by name.

    Args:
        again: The replay of what happened.
        baseline: What the candidate is compared with: the replay with today's quotas.
    """
    results = happened, again.outcomes, baseline.outcomes, candidate.outcomes
    comparisons = [
        ClientComparison(client, *(outcomes.get(client, _NOTHING) for outcomes in results))
        for client in set().union(*results)
    ]
    return sorted(
        comparisons, key=lambda line: (-abs(line.throttle_change_ms), -line.candidate.throttle_ms, line.client)
    )


def totals_of(comparisons: Sequence[ClientComparison]) -> Totals:
    """Totals of all clients."""
    changes, candidate = [line.change for line in comparisons], [line.candidate for line in comparisons]
    deferred_bytes = sum(one.deferred_bytes for one in candidate)
    return Totals(
        clients=len(comparisons),
        throttled=sum(one.windows > 0 for one in candidate),
        newly_throttled=changes.count("newly throttled"),
        no_longer_throttled=changes.count("no longer throttled"),
        windows_throttled=sum(one.windows for one in candidate),
        throttle_seconds=sum(one.throttle_ms for one in candidate) / 1000,
        throttle_seconds_change=sum(line.throttle_change_ms for line in comparisons) / 1000,
        bytes_deferred=deferred_bytes,
        bytes_deferred_change=deferred_bytes - sum(line.baseline.deferred_bytes for line in comparisons),
    )


def throttled_clients(comparisons: Sequence[ClientComparison]) -> list[ClientComparison]:
    """The clients that were throttled: really, in the replay of the baseline, or in the candidate's."""
    return [line for line in comparisons if line.happened.windows or line.baseline.windows or line.candidate.windows]


def to_document(comparisons: Sequence[ClientComparison], totals: Totals, about: Mapping[str, Any]) -> dict[str, Any]:
    """The whole report as one JSON document."""
    rows = [one.to_row() for one in throttled_clients(comparisons)]
    return {"about": dict(about), "totals": asdict(totals), "clients": rows}


METRICS: Final = tuple(field.name for field in fields(Totals))

_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    **{">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le},
    **{"==": operator.eq, "!=": operator.ne},
}
_FORM: Final = re.compile(r"\s*([a-z_]+)\s*(>=|<=|==|!=|>|<)\s*([-+]?\d+(?:\.\d+)?(?:e\d+)?)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class FailCondition:
    """`--fail-if`: a field of `Totals` compared with a number. The report fails if it is true."""

    metric: str
    comparison: str
    number: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an expression like `newly_throttled>3`; spaces are ignored. Anything else is a `UsageError`."""
        found = _FORM.fullmatch(text)
        if found is None or found[1] not in METRICS:
            msg = f"cannot read --fail-if {text}; write a metric, one of > >= < <= == !=, and a number"
            raise UsageError(msg, f"metrics are {', '.join(METRICS)}")
        return cls(found[1], found[2], float(found[3]))

    def is_met(self, totals: Totals) -> bool:
        """Whether the comparison is true, so that the report fails."""
        return _COMPARISONS[self.comparison](getattr(totals, self.metric), self.number)

    def __str__(self) -> str:
        """The expression, without spaces."""
        return f"{self.metric}{self.comparison}{self.number:g}"


def failures(conditions: Sequence[FailCondition], totals: Totals) -> list[str]:
    """One sentence for each condition that is met."""
    return [
        f"{condition}: {condition.metric} is {getattr(totals, condition.metric):g}"
        for condition in conditions
        if condition.is_met(totals)
    ]


# What an edit of quotas would do to the clients that were seen lately.


def impact_of(edits: Sequence[TableEdit[Any]], settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """The live clients that edits move, as of `standing_changes`, and a sentence for each thing to be warned of.

    * `edits`: of the quotas, of the tenants, or of both; a table without one is as it is.
    """
    root = settings.tables.root
    clients = live_clients(table_uri(root, "usage"))
    if not clients.num_rows:
        return [], []
    stored, before = QuotaTable(root).read(), QuotaSource(QuotaTable(root)).pin()
    mode: Literal["enforce", "shadow"] = "shadow" if stored.mode == "shadow" else "enforce"
    after, new, patterns = before, list[tuple[str, str]](), list[tuple[str, str]]()
    for edit in edits:
        if edit.before.kind is TENANT_ROWS:
            after = replace(after, tenants=read_tenants(edit.rows, edit.version, mode))
            patterns += new_patterns(edit.before.rows, edit.rows)
        else:
            quotas = QuotaSnapshot.from_rows(edit.rows, edit.version, mode).quotas
            old = {(quota.user, quota.client_id) for quota in before.quotas}
            after = replace(after, quotas=quotas)
            new += [entity for quota in quotas if (entity := (quota.user, quota.client_id)) not in old]
    moved = standing_changes(clients, before, after)
    seen = _seen(root, clients) if new or patterns else []
    warnings = [text for entity in new for text in name_warnings(entity, seen)]
    warnings += [text for pattern in patterns for text in pattern_warnings(pattern, seen)]
    return moved, warnings + _stopped(moved, after, stored.scope, settings)


def _seen(root: str, live: Any) -> list[tuple[str, str]]:
    """Every client that the tables still know."""
    tables = [live]
    with suppress(TableMissing):
        minutes = StoredTable(table_uri(root, "usage_by_minute"))
        tables.append(minutes.answer('SELECT DISTINCT "user", client_id FROM source'))
    return [(row["user"], row["client_id"]) for table in tables for row in table.to_pylist()]


def _stopped(moved: Sequence[dict[str, Any]], after: QuotaSnapshot, scope: Any, settings: Settings) -> list[str]:
    """The clients that new bounds would stop, by what they used in the last minutes."""
    usage = recent_usage(table_uri(settings.tables.root, "usage"), (*USAGE_COLUMNS, "request_count")) if moved else None
    if usage is None or not is_on_windows(usage, settings.engine.sample_window_ms):
        return []  # the job had other sample windows a moment ago
    engine = new_engine(settings.engine, settings.scope or scope)
    engine.load_quotas(after)
    return bound_warnings(moved, usage.combine_chunks(), engine)
