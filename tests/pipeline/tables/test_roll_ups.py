"""The roll-ups on real tables: nothing is lost and nothing is counted twice, wherever they are interrupted."""

from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.tables import roll_ups
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.port import TableUnwritable
from pipeline.tables.quotas.history import owners_in
from pipeline.tables.roll_ups import BY_MINUTE, BY_SECOND, MINUTE_MS, ThrottleByMinute, UsageRoller, UsageRollUp
from pipeline.tables.upkeep import trim
from schemas.throttle_record import Target
from tests.pipeline.tables.factories import AUDIT, EventTable, bound, new_table, quota_table, usage
from tests.quota.factories import usage_row

T0_MS = 1_700_000_040_000
assert T0_MS % MINUTE_MS == 0
FAR_MS = T0_MS + 20 * MINUTE_MS
DAY_MS = 86_400_000
BOTH = [BY_SECOND, BY_MINUTE]


class LostAnswers(DeltaRsWriter):
    """A writer whose next append raises, either before or after the rows are stored."""

    fail_next: str | None = None

    def append(self, *arguments: Any) -> bool:
        failure, self.fail_next = self.fail_next, None
        if failure != "before":
            super().append(*arguments)
        if failure:
            raise TableUnwritable(self.uri, "no answer")
        return True


INTERRUPTIONS = ["", "step", "restart", "before", "after", "before, restart", "after, restart", "compact"]


class RollingUp:
    """A roll-up that is run step by step.

    Args:
        source_uri: What it reads.
        uri: What it writes.
        made: Makes it, for a writer.
    """

    def __init__(
        self, source_uri: str, uri: str, made: Callable[[LostAnswers], UsageRoller | ThrottleByMinute]
    ) -> None:
        self.source_uri, self.uri, self._made = source_uri, uri, made
        self._driver = 0
        self.restart()

    def restart(self) -> None:
        """Start again as a new process, with nothing but the tables."""
        self.writer = LostAnswers(self.uri, "test")
        self._driver += 1
        self.writer.raise_epoch(self._driver)
        self.roll_up: Any = self._made(self.writer)

    def interrupt(self, how: str) -> None:
        """Nothing, a merge of files, or a step, which may fail before or after its first append; then a restart.

        Or a step after which the usage that is rolled up is deleted.
        """
        step, _, restart = how.partition(", ") if how != "restart" else ("", "", how)
        if step == "compact":
            DeltaTable(self.source_uri).optimize.compact()
        elif step:
            self.writer.fail_next = None if step in {"step", "trim"} else step
            self.roll_up.step()
        if step == "trim":
            trim(self.source_uri, "evaluated_at_ms", self.roll_up.written_until_ms)
        if restart:
            self.restart()

    def written(self) -> list[dict[str, Any]]:
        """Run one step. Returns all rows written so far."""
        self.roll_up.step()
        rows: list[dict[str, Any]] = self.writer.read().to_pylist()
        return rows


class Rolled(RollingUp):
    """A `usage` table and a roll-up of it."""

    def __init__(self, folder: Path, by: UsageRollUp) -> None:
        self._by = by
        self._batch_id = self.time_epoch = 0
        usage_uri, uri = (new_table(folder, name) for name in ("usage", f"usage_by_{by.name}"))
        super().__init__(usage_uri, uri, lambda writer: UsageRoller(by, usage_uri, writer, "test"))

    def use(self, *rows: dict[str, Any]) -> None:
        """Append the usage of one batch, evaluated at its newest event."""
        self._batch_id += 1
        newest_ms = max(row["last_event_ms"] for row in rows)
        stored = usage(*rows, batch_id=self._batch_id, time_epoch=self.time_epoch, evaluated_at_ms=newest_ms)
        write_deltalake(self.source_uri, stored, mode="append")

    def sums(self) -> list[tuple[int, str, int | None]]:
        """Run one step. Returns span, counted from T0, user and bytes produced of all rows written so far, in order."""
        name, span_ms = f"{self._by.name}_start_ms", self._by.span_ms
        rows = sorted(self.written(), key=lambda row: (row[name], row["user"], row["last_event_ms"]))
        return [((row[name] - T0_MS) // span_ms, row["user"], row["produced_bytes"]) for row in rows]


@pytest.fixture(params=BOTH, ids=lambda by: by.name)
def by(request: pytest.FixtureRequest) -> UsageRollUp:
    found: UsageRollUp = request.param
    return found


@pytest.fixture
def rolled(tmp_path: Path, by: UsageRollUp) -> Rolled:
    return Rolled(tmp_path, by)


@pytest.fixture
def seconds(tmp_path: Path) -> Rolled:
    return Rolled(tmp_path, BY_SECOND)


@pytest.mark.parametrize(("past_ms", "written"), [(-1, 0), (0, 1), (1, 1)])
def test_a_span_is_complete_after_the_lateness(rolled: Rolled, by: UsageRollUp, past_ms: int, written: int) -> None:
    rolled.use(usage_row(T0_MS, produced_bytes=1))
    rolled.use(usage_row(T0_MS + by.span_ms + by.lateness_ms + past_ms, produced_bytes=1))
    assert len(rolled.written()) == written


def test_a_second_that_is_written_gets_nothing_more(seconds: Rolled) -> None:
    late_ms = BY_SECOND.lateness_ms
    seconds.use(usage_row(T0_MS, produced_bytes=1))
    seconds.use(usage_row(T0_MS + late_ms + 999, produced_bytes=2))
    seconds.roll_up.step()
    seconds.use(usage_row(T0_MS, produced_bytes=4))
    seconds.use(usage_row(FAR_MS, produced_bytes=8))
    assert seconds.sums() == [(0, "u", 5), (late_ms // 1000, "u", 2)]
    seconds.use(
        usage_row(T0_MS, produced_bytes=16), usage_row(T0_MS + 5_000, user="v"), usage_row(FAR_MS + 2, produced_bytes=1)
    )
    assert seconds.sums() == [(0, "u", 5), (late_ms // 1000, "u", 2)]


def test_time_without_usage_costs_no_commit_also_after_an_event_of_1970(seconds: Rolled) -> None:
    before = DeltaTable(seconds.uri).version()
    seconds.use(usage_row(5_000, produced_bytes=1), usage_row(T0_MS, produced_bytes=2))
    seconds.use(usage_row(FAR_MS, produced_bytes=4))
    assert [row[2] for row in seconds.sums()] == [1, 2]
    assert DeltaTable(seconds.uri).version() == before + 2
    assert seconds.roll_up.written_until_ms == FAR_MS - BY_SECOND.lateness_ms


def test_it_knows_until_when_usage_is_rolled_up(rolled: Rolled, by: UsageRollUp) -> None:
    assert rolled.roll_up.written_until_ms == 0
    rolled.use(usage_row(T0_MS + 70, produced_bytes=1))
    rolled.roll_up.step()
    assert rolled.roll_up.written_until_ms == T0_MS
    rolled.use(usage_row(FAR_MS + 90, produced_bytes=1))
    rolled.roll_up.step()
    assert rolled.roll_up.written_until_ms == FAR_MS - max(by.lateness_ms, by.span_ms)


def test_a_sum_is_null_only_if_all_are_null_and_is_cut_where_no_integer_holds_it(rolled: Rolled) -> None:
    rolled.use(
        usage_row(T0_MS, fetched_bytes=0, io_time_ns=3, network_time_ns=2**61, broker_throttle_ms=None),
        usage_row(T0_MS + 1, network_time_ns=2**61, broker_throttle_ms=40),
        *(usage_row(T0_MS + 2 + number, network_time_ns=2**61) for number in range(7)),
    )
    rolled.use(usage_row(FAR_MS))
    (row,) = rolled.written()
    names = ("produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns", "exempt_time_ns", "request_count")
    assert tuple(row[name] for name in (*names, "broker_throttle_ms")) == (None, 0, 3, 2**62, None, 9, 40)
    assert row["date"] == date(2023, 11, 14)


Batch = tuple[int, list[tuple[int, int]]]
"""By how much the newest event is newer than that of the batch before; and the age and bytes of each further row.

Below 0 a clock was set back, and the batch begins a new time epoch.
"""
STEPS_MS = [0, 1, 7_000, 50_000, MINUTE_MS, 3 * MINUTE_MS, -20_000, -60 * MINUTE_MS]
AGES_MS = [0, 1, 9_999, 10_000, 10_001, MINUTE_MS, 5 * MINUTE_MS, 3 * DAY_MS]
"""Of these a second takes what is at most a minute older than the batch before; see `_is_in_time`."""
STEPPED: list[Batch] = [(0, [(0, 3)]), (MINUTE_MS, []), (-60 * MINUTE_MS, [(0, 5)]), (3 * MINUTE_MS, [(MINUTE_MS, 7)])]

batches = st.lists(
    st.tuples(
        st.sampled_from(STEPS_MS), st.lists(st.tuples(st.sampled_from(AGES_MS), st.integers(1, 1_000)), max_size=4)
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=10)
@example(by=BY_MINUTE, batches=STEPPED, interruptions=["step", "trim", "after", "restart"])
@example(
    by=BY_MINUTE, batches=[*STEPPED, (-20_000, [(0, 9)])], interruptions=["", "before", "restart", "before", "step"]
)
@given(
    by=st.sampled_from(BOTH),
    batches=batches,
    interruptions=st.lists(st.sampled_from([*INTERRUPTIONS, "trim"]), max_size=8),
)
def test_the_sum_of_each_span_is_that_of_a_batch_computation_over_all_usage(
    by: UsageRollUp, batches: list[Batch], interruptions: list[str]
) -> None:
    with TemporaryDirectory() as folder:
        rolled = Rolled(Path(folder), by)
        wanted: Counter[int] = Counter()
        now_ms = T0_MS + 20 * MINUTE_MS
        for number, (newer_ms, others) in enumerate(batches):
            before_ms, now_ms = now_ms, now_ms + newer_ms
            rolled.time_epoch += newer_ms < 0
            oldest_ms = before_ms if by is BY_SECOND and newer_ms >= 0 else now_ms
            used = [(now_ms, 1), *((oldest_ms - age_ms, size) for age_ms, size in others if _is_in_time(by, age_ms))]
            rolled.use(*[usage_row(at_ms, produced_bytes=size) for at_ms, size in used])
            for at_ms, used_bytes in used:
                wanted[at_ms // by.span_ms] += used_bytes
            rolled.interrupt(interruptions[number] if number < len(interruptions) else "")
        rolled.use(usage_row(now_ms + 10 * MINUTE_MS, user="clock"))
        rolled.roll_up.step()
        got: Counter[int] = Counter()
        for span, user, size in rolled.sums():
            if user == "u":
                got[span + T0_MS // by.span_ms] += size or 0
        assert got == wanted


def _is_in_time(by: UsageRollUp, age_ms: int) -> bool:
    return by is BY_MINUTE or age_ms <= BY_SECOND.lateness_ms


@pytest.mark.parametrize("step_ms", [20_000, 3_600_000])
def test_what_is_left_of_an_old_epoch_is_written_at_once(rolled: Rolled, by: UsageRollUp, step_ms: int) -> None:
    rolled.use(usage_row(T0_MS + step_ms, produced_bytes=1, user="old"))
    rolled.roll_up.step()
    rolled.time_epoch = 1
    rolled.use(usage_row(T0_MS, produced_bytes=2))
    assert [row[1:] for row in rolled.sums()] == [("old", 1)]
    rolled.use(usage_row(T0_MS + by.span_ms + by.lateness_ms, produced_bytes=4))
    assert {row[1:] for row in rolled.sums()} == {("old", 1), ("u", 2)}
    assert rolled.roll_up.written_until_ms <= T0_MS + by.span_ms


def test_usage_of_an_old_epoch_that_could_not_be_rolled_up_is_said_to_be_unread(rolled: Rolled) -> None:
    rolled.use(usage_row(T0_MS, produced_bytes=1))
    rolled.roll_up.step()
    rolled.time_epoch = 1
    rolled.use(usage_row(T0_MS + 2 * DAY_MS, produced_bytes=2))
    rolled.writer.fail_next = "before"
    rolled.roll_up.step()
    assert rolled.roll_up.written_until_ms <= T0_MS
    rolled.roll_up.step()
    assert rolled.roll_up.written_until_ms > T0_MS + DAY_MS


# Throttles by minute.


Minutes = dict[tuple[int, str | None, str | None], tuple[int, int, int]]
"""(minute, client-id, owner) -> time held in ms, throttles, renewals; for a user those of all its quota types."""


class RolledThrottles(RollingUp):
    """Throttle records and their roll-up."""

    def __init__(self, folder: Path) -> None:
        self.events, self.quotas = EventTable(folder), quota_table(folder)
        self._owners: dict[int, str | None] = {0: None}
        source_uri = self.events.table.uri
        super().__init__(
            source_uri,
            new_table(folder, "throttle_by_minute"),
            lambda writer: ThrottleByMinute(source_uri, writer, "test", owners_in(self.quotas)),
        )

    def owned_by(self, owner: str) -> int:
        """Give the user an owner. Returns the version of the quota table."""
        version = self.quotas.alter([bound("u", 1.0, owner=owner)], AUDIT)
        self._owners[version] = owner
        return version

    def tell(self, client_id: str | None, action: str, at_ms: int, throttle_time_ms: int = 0, **columns: Any) -> None:
        """Store one record, `at_ms` counted from `T0_MS`; by default a violation, or an expiry, of decision d1."""
        told = {"cause": "violation" if action == "throttle" else "expired", "decision_id": "d1", **columns}
        record = client_id, action, T0_MS + at_ms, throttle_time_ms
        self.events.write(record, **({"quota_type": "producer_byte_rate"} | told))

    def sums(self) -> Minutes:
        """Run one step. Returns the sums of all rows written so far, minutes counted from `T0_MS`."""
        return summed(self.written())

    def recomputed(self) -> Minutes:
        """The same from all records at once, one by one, without the code of the roll-up."""
        rows = self.events.table.read().to_pylist()
        added: list[dict[str, Any]] = []
        last: dict[Target, dict[str, Any]] = {}
        for row in sorted(rows, key=lambda row: row["publish_seq"]):
            before = last.get(Target.of(row))
            last[Target.of(row)] = row
            before = before if before and before["action"] == "throttle" else None
            if before:
                end_ms = min(before["throttled_until_ms"], stored_ms(row))
                added += [
                    self._added(before, at_ms, held_ms=1_000) for at_ms in range(stored_ms(before), end_ms, 1_000)
                ]
            if row["action"] == "throttle":
                is_new = before is None or before["decision_id"] != row["decision_id"]
                name = "throttle_count" if is_new and row["cause"] == "violation" else "renewal_count"
                added.append(self._added(row, stored_ms(row), **{name: 1}))
        return summed(added)

    def _added(self, row: dict[str, Any], at_ms: int, **figures: int) -> dict[str, Any]:
        empty = {"held_ms": 0, "throttle_count": 0, "renewal_count": 0, "owner": self._owners[row["quota_version"]]}
        return empty | {"client_id": row["client_id"], "minute_start_ms": at_ms // MINUTE_MS * MINUTE_MS} | figures


def stored_ms(row: dict[str, Any]) -> int:
    """When a record was stored, by wall clock."""
    return int(row["throttled_until_ms"] - row["throttle_time_ms"])


def summed(rows: list[dict[str, Any]]) -> Minutes:
    """The sums of rows of `throttle_by_minute`."""
    sums: dict[tuple[int, str | None, str | None], Counter[str]] = {}
    for row in rows:
        key = (row["minute_start_ms"] - T0_MS) // MINUTE_MS, row["client_id"], row["owner"]
        sums.setdefault(key, Counter()).update({name: row[name] for name in FIGURES})
    return {key: tuple(found[name] for name in FIGURES) for key, found in sorted(sums.items(), key=str)}  # type: ignore[misc]


FIGURES = ("held_ms", "throttle_count", "renewal_count")


@pytest.fixture
def throttles(tmp_path: Path) -> RolledThrottles:
    return RolledThrottles(tmp_path)


@pytest.mark.parametrize(
    ("next_at_ms", "held_ms"),
    [(4_000, 4_000), (10_000, 10_000), (11_000, 10_000), (0, 0), (-5_000, 0)],
    ids=["before its end", "at its end", "after its end", "at once", "the clock was set back"],
)
def test_it_holds_until_its_end_or_the_next_record(throttles: RolledThrottles, next_at_ms: int, held_ms: int) -> None:
    throttles.tell("c", "throttle", 20_000, 10_000)
    assert throttles.sums() == {(0, "c", None): (0, 1, 0)}
    throttles.tell("c", "release", 20_000 + next_at_ms)
    assert throttles.sums() == {(0, "c", None): (held_ms, 1, 0)}


def test_records_that_retention_has_deleted_are_not_missed(throttles: RolledThrottles) -> None:
    throttles.tell("a", "throttle", 0, 1_000)
    throttles.tell("b", "throttle", 0, 1_000)
    throttles.tell("b", "release", 1_000)
    DeltaTable(throttles.events.table.uri).delete("client_id = 'a'")
    assert throttles.sums() == {(0, "b", None): (1_000, 1, 0)}


Record = tuple[tuple[str | None, str], str, str, int, int, str, int]
"""Client-id and quota type, broker, action, seconds since the record before, length, cause, quota version."""

records = st.lists(
    st.tuples(
        st.sampled_from([("a", "produce"), ("a", "fetch"), ("", "fetch"), (None, "produce"), (None, "fetch")]),
        st.sampled_from(["", "", "2"]),
        st.sampled_from(["throttle", "throttle", "release"]),
        st.sampled_from([0, 1, 7, 59, 60, 61, 200, -30]),
        st.sampled_from([1, 10, 60, 61, 600]),
        st.sampled_from(["violation", "renewed", "quota_changed"]),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=6)
@given(
    records=records, interruptions=st.lists(st.sampled_from(INTERRUPTIONS), max_size=12), per_append=st.integers(1, 4)
)
def test_minutes_are_the_sums_of_all_records(records: list[Record], interruptions: list[str], per_append: int) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(roll_ups, "RECORDS_PER_APPEND", per_append)  # small, so that a step makes several appends
        rolled = RolledThrottles(Path(folder))
        versions = [0, rolled.owned_by("one"), rolled.owned_by("two")]
        at_ms = 0
        for number, ((client_id, quota_type), broker, action, after_s, length_s, cause, version) in enumerate(records):
            at_ms = max(at_ms + after_s * 1_000, 0)
            length_ms = length_s * 1_000 if action == "throttle" else 0
            told: dict[str, Any] = {"cause": cause, "decision_id": f"d{number // 3}", "quota_type": quota_type}
            told |= {"quota_version": versions[version], "broker_id": broker}
            rolled.tell(client_id, action, at_ms, length_ms, **told)
            rolled.interrupt(interruptions[number] if number < len(interruptions) else "")
        rolled.roll_up.step()
        assert rolled.sums() == rolled.recomputed()
