"""The closed loop on a clock that is set by hand: does an offender that obeys throttles end at its quota?

Engine, outbox, publisher, ledger and wheel are those of the product. Time, the topic and the offenders are simulated.
Each offender sends at k times its quota whenever it is not throttled, and obeys a record `lag_ms` after it was
published. All offenders of a run share one engine and one purgatory.

    python -m bench closed_loop -- [--hours 1] [--write]

With `--write` the table goes into docs/measured.md too.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa

from bench.machine import arguments, machine_line
from bench.pages import table, write_part
from pipeline.settings.model import EngineSettings, PurgatorySettings, Settings, StreamSettings
from pipeline.stream.usage_columns import USAGE_SCHEMA
from pipeline.throttle.assembly import Rehearsal
from pipeline.throttle.shapes import Publications
from quota.arrays import Ints
from quota.decisions import Evaluation
from quota.snapshot import QuotaSnapshot
from schemas.names import ClientKey

BOUND: Final = 1_000_000.0
BURST_SECONDS: Final = 11
TRIGGER_MS: Final = 250
LEAD_MS: Final = 1_000
STEP_MS: Final = 50
START_MS: Final = 1_700_000_000_000
OVERLOADS: Final = (1.05, 1.2, 1.5, 2.0, 5.0, 10.0, 20.0, 50.0)

# A cap is per quota type, so one run has both caps: producers are cut at 1 s, consumers at the window.
CapName = Literal["1 s", "window"]
CAPS: Final[tuple[CapName, ...]] = ("1 s", "window")
LAGS_MS: Final = (200, 500)
MOST_RECORDS_PER_MINUTE: Final = 45
PAGE: Final = Path(__file__).parents[1] / "docs" / "measured.md"
MARKS: Final = ("<!-- closed loop: begin -->", "<!-- closed loop: end -->")
# Producers are cut at 1 s, consumers at the window. A throttle is looked at `LEAD_MS` before its end.
_SETTINGS: Final = Settings(
    job="simulated",
    engine=EngineSettings(producer_byte_rate_cap=1000, consumer_byte_rate_cap="window"),
    stream=StreamSettings(trigger_ms=TRIGGER_MS),
    purgatory=PurgatorySettings(client_lag_ms=LEAD_MS - TRIGGER_MS, min_renew_lead_ms=LEAD_MS),
)
TYPE_OF: Final = {"1 s": "producer_byte_rate", "window": "consumer_byte_rate"}


@dataclass
class Offender:
    """One client and what it did. A cycle begins with the first throttle, and with each one after a release."""

    overload: float  # k, its rate while it sends, divided by T
    lag_ms: int  # from the publishing of a record until the client obeys it
    cap: CapName  # of its quota type
    late_ms: int = 0  # from its usage until the job has it
    sent: float = 0.0  # all bytes
    excess_seconds: float = 0.0  # the largest sent − T · t since the first throttle, in seconds of T
    cycles: list[tuple[int, float]] = field(default_factory=list)  # when each began, and the bytes sent until then
    records: int = 0  # about it
    _blocked_until_ms: int = 0
    _orders: list[tuple[int, int]] = field(default_factory=list)
    _heard: bool = False
    _idle: bool = True
    _run_ms: int = 0

    @property
    def key(self) -> ClientKey:
        return ClientKey("", f"user-{self.cap}-{self.lag_ms}-{self.late_ms}", f"k{self.overload}")

    @property
    def first_throttle_ms(self) -> int | None:
        """How long after its start it was asked to wait for the first time; None: never."""
        return self.cycles[0][0] - START_MS if self.cycles else None

    def rate_at(self, _at_ms: int) -> float:
        """What it sends a second while it is not held."""
        return self.overload * BOUND

    def hears(self, record: dict[str, Any], now_ms: int) -> None:
        """A record was published. It takes effect after the lag."""
        self.records += 1
        is_throttle = record["action"] == "throttle"
        until_ms = now_ms + record["throttle_time_ms"] if is_throttle else 0
        self._orders.append((now_ms + self.lag_ms, until_ms))
        if is_throttle and self._idle:
            self.cycles.append((now_ms, self.sent))
        self._idle = not is_throttle
        self._heard = self._heard or is_throttle

    def run(self, from_ms: int, span_ms: int) -> int:
        """Simulate a span of time. Returns the bytes that were sent in it."""
        while self._orders and self._orders[0][0] <= from_ms:
            self._blocked_until_ms = self._orders.pop(0)[1]
        free_ms = from_ms + span_ms - min(max(self._blocked_until_ms, from_ms), from_ms + span_ms)
        sent = round(self.rate_at(from_ms) * free_ms / 1000)
        self.sent += sent
        self._run_ms += span_ms
        if self._heard:
            elapsed_seconds = (from_ms + span_ms - START_MS) / 1000
            self.excess_seconds = max(self.excess_seconds, self.sent / BOUND - elapsed_seconds)
        return sent

    @property
    def mean_ratio(self) -> float:
        """The mean rate over whole throttle cycles, divided by T. Without a whole cycle it is that of the whole run."""
        if len(self.cycles) < 2:
            return self.sent / BOUND / (self._run_ms / 1000)
        (first_ms, first_sent), (last_ms, last_sent) = self.cycles[0], self.cycles[-1]
        return (last_sent - first_sent) / BOUND / ((last_ms - first_ms) / 1000)

    @property
    def records_per_minute(self) -> float:
        return self.records / (self._run_ms / 60_000)

    @property
    def allowed_excess_seconds(self) -> float:
        """The bound of `excess_seconds`: two bursts + 1.1 · k · (loop delay), in seconds of T."""
        return 2 * BURST_SECONDS + 1.1 * self.overload * (TRIGGER_MS + self.lag_ms) / 1000


class Loop:
    """Engine, purgatory and offenders on one clock."""

    def __init__(self, offenders: Sequence[Offender], quotas: QuotaSnapshot | None = None) -> None:
        """The offenders have a quota of their own each, unless quotas are given."""
        self.offenders = {offender.key: offender for offender in offenders}
        self._job = Rehearsal(_SETTINGS, "cluster", self._deliver)
        self._job.begin(START_MS)
        own = [{**one.key._asdict(), TYPE_OF[one.cap]: BOUND} for one in offenders]
        self._job.put_in_force(quotas or QuotaSnapshot.from_rows(own, version=1))
        self._on_its_way: list[tuple[int, dict[str, object]]] = []  # usage that is late, and when the job has it

    def run(self, hours: float) -> None:
        """Let time pass in triggers of 250 ms. Looks happen at the millisecond at which they are due."""
        for batch_id in range(round(hours * 3_600_000 / TRIGGER_MS)):
            usage = pa.Table.from_pylist(self._live_until_trigger(), USAGE_SCHEMA)
            self._job.decide(usage, Evaluation("simulated", batch_id, self._job.now_ms, 1))

    def _live_until_trigger(self) -> list[dict[str, object]]:
        usage: dict[tuple[ClientKey, int], list[int]] = {}  # by second: the bytes, and when the last were sent
        end_ms = self._job.now_ms + TRIGGER_MS
        while (now_ms := self._job.now_ms) < end_ms:
            step_end_ms = now_ms + STEP_MS
            for key, offender in self.offenders.items():
                sent = offender.run(now_ms, STEP_MS)
                if sent:
                    entry = usage.setdefault((key, (step_end_ms - 1) // 1000 * 1000), [0, 0])
                    entry[0] += sent
                    entry[1] = step_end_ms - 1
            self._job.wait_until(step_end_ms)
        for (key, start_ms), (sent, last_ms) in usage.items():
            column = "produced_bytes" if self.offenders[key].cap == "1 s" else "fetched_bytes"
            row = {**key._asdict(), "sample_start_ms": start_ms, "last_event_ms": last_ms, column: sent}
            self._on_its_way.append((end_ms + self.offenders[key].late_ms, row))
        arrived = [row for due_ms, row in self._on_its_way if due_ms <= end_ms]
        self._on_its_way = [one for one in self._on_its_way if one[0] > end_ms]
        return arrived

    def _deliver(self, publications: Publications, at_ms: Ints) -> None:
        for record, published_ms in zip(publications.written(0, at_ms).to_pylist(), at_ms.tolist(), strict=True):
            self.offenders[ClientKey.of(record)].hears(record, published_ms)


def offenders() -> list[Offender]:
    """One offender for each overload, lag and cap."""
    return [Offender(overload, lag_ms, cap) for cap in CAPS for lag_ms in LAGS_MS for overload in OVERLOADS]


def table_of(loop: Loop) -> str:
    """In Markdown: a row for each overload, a column for each lag and cap.

    Mean ÷ T over whole cycles; the largest sent − T · t in seconds of T, and its bound; records a minute.
    """
    columns = [(cap, lag_ms) for cap in CAPS for lag_ms in LAGS_MS]
    of = {(one.overload, one.cap, one.lag_ms): one for one in loop.offenders.values()}
    head = ["k", *(f"lag {lag_ms}, cap {cap}" for cap, lag_ms in columns)]
    rows = [[f"{k:g}", *(_cell(of[k, cap, lag_ms]) for cap, lag_ms in columns)] for k in OVERLOADS]
    return table(head, rows)


def _cell(one: Offender) -> str:
    excess = f"{one.excess_seconds:.1f} of {one.allowed_excess_seconds:.1f}"
    return f"{one.mean_ratio:.3f}; {excess}; {one.records_per_minute:.0f}"


def main() -> None:
    given = arguments(__doc__, hours=1.0, write=False)
    loop = Loop(offenders())
    loop.run(given.hours)
    about = f"{given.hours:g} h, trigger {TRIGGER_MS} ms, check {LEAD_MS} ms ahead; {machine_line()}"
    text = f"{about}\n\n{table_of(loop)}"
    sys.stdout.write(f"{text}\n")
    if given.write:
        write_part(PAGE, *MARKS, text)


if __name__ == "__main__":
    main()
