"""The roll-up of throttles on real tables: nothing is lost and nothing is counted twice, wherever it is interrupted."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.tables import roll_ups
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import table_uri
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.history import owners_in
from pipeline.tables.quotas.table import EditAudit, QuotaTable
from pipeline.tables.roll_ups import ThrottleByMinute
from schemas.arrow import arrow_schema
from schemas.throttle_record import Target, ThrottleByMinuteRow
from tests.pipeline.tables.event_table import EventTable
from tests.pipeline.tables.test_usage_roll_ups import LostAnswers

MINUTE_MS = 60_000
T0_MS = 1_700_000_040_000

Minutes = dict[tuple[int, str | None, str | None], tuple[int, int, int]]
"""(minute, client-id, owner) -> time held in ms, throttles, renewals; for a user those of all its quota types."""


class RolledThrottles:
    """Throttle records and their roll-up, which is run step by step."""

    def __init__(self, folder: Path) -> None:
        self.root = str(folder / "tables")
        self._epoch = 0
        create_missing(self.root, [TABLES["quotas"], TABLES["throttle_by_minute"]])
        self.quotas = QuotaTable(self.root)
        self.events = EventTable(Path(self.root))
        self._owners: dict[int, str | None] = {0: None}
        self.restart()

    def restart(self) -> None:
        """Start again as a new process, with nothing but the tables."""
        self.writer = LostAnswers(table_uri(self.root, "throttle_by_minute"), "test")
        self._epoch += 1
        self.writer.raise_epoch(self._epoch)
        events_uri = table_uri(self.root, "throttle_events")
        self.roll_up = ThrottleByMinute(events_uri, self.writer, "test", owners_in(self.quotas))

    def owned_by(self, owner: str | None, user: str = "u") -> int:
        """Give a user an owner. Returns the version of the quota table."""
        change = QuotaChange(user, "", {"producer_byte_rate": 1.0, "owner": owner})
        version = self.quotas.alter([change], EditAudit("ops", "host", "0", "test"))
        self._owners[version] = owner
        return version

    def tell(self, client_id: str | None, action: str, at_ms: int, throttle_time_ms: int = 0, **columns: Any) -> None:
        """Store one record, `at_ms` counted from `T0_MS`; by default a violation, or an expiry, of decision d1."""
        told = {"cause": "violation" if action == "throttle" else "expired", "decision_id": "d1", **columns}
        record = client_id, action, T0_MS + at_ms, throttle_time_ms
        self.events.write(record, **({"quota_type": "producer_byte_rate"} | told))

    def step(self) -> Minutes:
        """Run one step. Returns the sums of all rows written so far, minutes counted from `T0_MS`."""
        self.roll_up.step()
        return self.written()

    def written(self) -> Minutes:
        """The sums of all rows written so far, minutes counted from `T0_MS`."""
        table = DeltaTable(table_uri(self.root, "throttle_by_minute")).to_pyarrow_table()
        assert table.schema.names == arrow_schema(ThrottleByMinuteRow).names
        return summed(table.to_pylist())

    def recomputed(self) -> Minutes:
        """The same from all records at once, one by one, without the code of the roll-up."""
        rows = DeltaTable(table_uri(self.root, "throttle_events")).to_pyarrow_table().to_pylist()
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
def rolled(tmp_path: Path) -> RolledThrottles:
    return RolledThrottles(tmp_path)


def test_a_throttle_counts_when_it_begins_its_time_when_the_next_record_is_stored(
    rolled: RolledThrottles,
) -> None:
    rolled.tell("c", "throttle", 50_000, 15_000)
    assert rolled.step() == {(0, "c", None): (0, 1, 0)}
    rolled.tell("c", "release", 65_000)
    held = {(0, "c", None): (10_000, 1, 0), (1, "c", None): (5_000, 0, 0)}
    assert rolled.step() == held
    assert rolled.step() == held


@pytest.mark.parametrize(
    ("next_at_ms", "held_ms"),
    [(4_000, 4_000), (10_000, 10_000), (11_000, 10_000), (0, 0), (-5_000, 0)],
    ids=["before its end", "at its end", "after its end", "at once", "the clock was set back"],
)
def test_a_throttle_holds_until_its_end_or_the_next_record(
    rolled: RolledThrottles, next_at_ms: int, held_ms: int
) -> None:
    rolled.tell("c", "throttle", 20_000, 10_000)
    rolled.tell("c", "release", 20_000 + next_at_ms)
    assert rolled.step() == {(0, "c", None): (held_ms, 1, 0)}


def test_clients_of_one_name_at_two_brokers_are_two(rolled: RolledThrottles) -> None:
    rolled.tell("c", "throttle", 0, 5_000, broker_id="1")
    rolled.tell("c", "throttle", 1_000, 5_000, broker_id="2")
    rolled.tell("c", "release", 2_000, broker_id="1")
    rolled.tell("c", "release", 3_000, broker_id="2")
    assert rolled.step() == {(0, "c", None): (4_000, 2, 0)}


def test_without_records_nothing_is_written_and_without_the_table_only_the_log_knows(
    rolled: RolledThrottles, caplog: pytest.LogCaptureFixture
) -> None:
    assert rolled.step() == {}
    rolled.tell("c", "throttle", 0, 5_000)
    for file in Path(rolled.root, "throttle_by_minute", "_delta_log").iterdir():
        file.unlink()
    rolled.roll_up.step()
    assert "failed, the next round repeats it" in caplog.text


def test_records_that_retention_has_deleted_are_not_missed(rolled: RolledThrottles) -> None:
    rolled.tell("a", "throttle", 0, 1_000)
    rolled.tell("b", "throttle", 0, 1_000)
    rolled.tell("b", "release", 1_000)
    DeltaTable(table_uri(rolled.root, "throttle_events")).delete("client_id = 'a'")
    assert rolled.step() == {(0, "b", None): (1_000, 1, 0)}


Record = tuple[tuple[str | None, str], str, int, int, str, int]
"""Client-id and quota type, action, seconds since the record before, length in seconds, cause, quota version."""

records = st.lists(
    st.tuples(
        st.sampled_from([("a", "produce"), ("a", "fetch"), ("", "fetch"), (None, "produce"), (None, "fetch")]),
        st.sampled_from(["throttle", "throttle", "release"]),
        st.sampled_from([0, 1, 7, 59, 60, 61, 200, -30]),
        st.sampled_from([1, 10, 60, 61, 600]),
        st.sampled_from(["violation", "renewed", "quota_changed"]),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
)
INTERRUPTIONS = ["", "step", "restart", "before", "after", "before, restart", "after, restart", "compact"]


@settings(max_examples=8)
@given(
    records=records, interruptions=st.lists(st.sampled_from(INTERRUPTIONS), max_size=12), per_append=st.integers(1, 4)
)
def test_the_sums_are_those_of_a_batch_computation_over_all_records(
    records: list[Record], interruptions: list[str], per_append: int
) -> None:
    with TemporaryDirectory() as folder, appends_of(per_append):
        rolled = RolledThrottles(Path(folder))
        versions = [0, rolled.owned_by("one"), rolled.owned_by("two")]
        at_ms = 0
        for number, ((client_id, quota_type), action, after_s, length_s, cause, version) in enumerate(records):
            at_ms = max(at_ms + after_s * 1_000, 0)
            length_ms = length_s * 1_000 if action == "throttle" else 0
            told: dict[str, Any] = {"cause": cause, "decision_id": f"d{number // 3}", "quota_type": quota_type}
            told["quota_version"] = versions[version]
            rolled.tell(client_id, action, at_ms, length_ms, **told)
            interrupt(rolled, interruptions[number] if number < len(interruptions) else "")
        rolled.roll_up.step()
        assert rolled.step() == rolled.recomputed()


def interrupt(rolled: RolledThrottles, how: str) -> None:
    if how == "compact":
        DeltaTable(table_uri(rolled.root, "throttle_events")).optimize.compact()
        return
    if how.startswith(("before", "after")):
        rolled.writer.fail_next = how.partition(",")[0]
    if how not in {"", "restart"}:
        rolled.roll_up.step()
    if how.endswith("restart"):
        rolled.restart()


@contextmanager
def appends_of(records: int) -> Iterator[None]:
    before = roll_ups.RECORDS_PER_APPEND
    roll_ups.RECORDS_PER_APPEND = records  # type: ignore[misc] # small, so that a step makes several appends
    try:
        yield
    finally:
        roll_ups.RECORDS_PER_APPEND = before  # type: ignore[misc]
