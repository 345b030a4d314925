"""What the demo shows: on a terminal one screen, redrawn each second; else one line for each record.

Its figures are those of the table `rates` and of the throttle records, which the job hands over.
"""

import math
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from textwrap import wrap
from threading import Lock
from typing import Any, Final, TextIO

import pyarrow as pa
from rich.console import Console
from rich.live import Live
from rich.text import Text

from pipeline.cli.output import Layout, fitted, remark, say
from pipeline.clock import SHOWN_DIGITS, clock_time, seconds, wall_ms
from pipeline.command_line import path_text, shell_lines
from pipeline.demo.folder import DEMO_CLIENTS, STOCK_CLIENTS, DemoClient, DemoFolder, at_the_end, while_it_runs
from pipeline.job.metrics import Listeners, RunGauges
from pipeline.process import repeating
from pipeline.stream.micro_batch import BatchReport
from pipeline.tables.rates import members_of
from quota.effective import borrowed, lending_text
from quota.entity import QUOTA_TYPES
from quota.tenants import Tenant
from quota.units import against_bound, counted, rate_text
from schemas.throttle_record import Target, holds, verb

_NAME: Final = "demo-console"
_DRAWN_EVERY_SECONDS: Final = 1.0
_QUIET_SECONDS: Final = 4.0
_MOST_RECORDS: Final = 8
_WINDOW_SECONDS: Final = 11.0  # from the first usage on, until a rate has a full window
_TROUBLE_SECONDS: Final = 20.0
_OF_TENANT: Final = ("tenant", "quota_type", "broker_id")
_TYPES: Final = {"produce": QUOTA_TYPES[0], "consume": QUOTA_TYPES[1]}
_CLIENTS: Final = sorted((*DEMO_CLIENTS, *STOCK_CLIENTS), key=lambda client: -client.load_factor)
_DO_NOT_LISTEN: Final = frozenset((client.user, client.client_id) for client in STOCK_CLIENTS)
_TABLE: Final = Layout(
    ("client", "rate", "quota", "share", "mean/quota", "held_by"),
    dropped_first=("share", "rate", "quota"),
    names=frozenset(),
)
_NONE: Final = "–"
_LEGEND: Final = "mean/quota: about 1.00 is right for who wants more; what is lent comes on top"
_RELEASED: Final = {
    "expired": "has waited long enough",
    "quota_changed": "its quota was changed",
    "forgiven": "its debt was forgiven",
}

Row = Mapping[str, Any]


class DemoConsole:
    """Shows the demo, and its totals at the end. Any thread may call any method.

    The screen has a row for each client, the newest records and commands to try; the log goes to a file meanwhile.
    Without a terminal each record is a line, commands are printed once, and after four quiet seconds the totals.

    Of a client that does not listen only the first record is shown. Its broker keeps it at its quota, so kquota's own
    rate is just above and just below it by turns.

    * `page`: The address of the page.
    """

    def __init__(self, folder: DemoFolder, page: str, watched: bool) -> None:
        self._folder = folder
        self._page = page
        self._watched = watched
        self._lock = Lock()
        self._hushed: set[tuple[str, str]] = set()
        self._last: dict[Target, Row] = {}
        self._decision_id: str | None = None
        self._lines: deque[str] = deque(maxlen=_MOST_RECORDS)
        self._log: deque[str] = deque(maxlen=_MOST_RECORDS)
        self._trouble = ("", 0.0)
        self._log_file: TextIO | None = None
        self._batches = self._events = self._dead = self._records = 0
        self._gauges: weakref.ref[RunGauges] | None = None
        self._rates: pa.Table | None = None
        self._shares = Means()
        self._lending: str | None = None
        self._began_at = self._printed_at = time.monotonic()

    def listeners(self) -> Listeners:
        """The functions that the job calls."""
        return Listeners(self._throttles_written, self._batch, began=self._began)

    @contextmanager
    def shown(self, is_stopping: Callable[[], bool]) -> Iterator[None]:
        """Show the demo within the block."""
        if not self._watched:
            with repeating(_NAME, lambda: self._break_silence(is_stopping()), _DRAWN_EVERY_SECONDS):
                yield
            return
        console = Console(highlight=False)

        def redrawn(*, is_over: bool = False) -> Text:
            commands = [] if is_over else shell_lines(while_it_runs("program"))
            commands = [part for one in commands for part in wrap(one, console.width, break_long_words=False)]
            note = "stopping" if is_stopping() else "Ctrl-C ends it"
            return self.screen(console.width, console.height, note, commands)

        try:
            with (
                self._folder.demo_log.open("w", encoding="utf-8") as self._log_file,
                Live(redrawn(), console=console, screen=True, auto_refresh=False) as live,
                repeating(_NAME, lambda: live.update(redrawn(), refresh=True), _DRAWN_EVERY_SECONDS),
            ):
                yield
        except Exception:
            remark(*self._log, f"the whole log: {path_text(self._folder.demo_log)}")
            raise
        console.print(redrawn(is_over=True), no_wrap=True, overflow="crop")

    def write(self, text: str) -> None:
        """Take a line of the log of this process: it goes to the file, and to the screen until there are rates."""
        if self._log_file is not None and not self._log_file.closed:
            self._log_file.write(text)
            self._log_file.flush()
        self._log.append(text.rstrip())
        if " WARNING " in text or " ERROR " in text:
            self._trouble = text.rstrip(), time.monotonic()

    def flush(self) -> None:
        """Do nothing: what is written is in the file. For `logging.StreamHandler`."""

    def summary(self) -> None:
        """Print the totals on stdout, and commands to try next on stderr."""
        with self._lock:
            say(
                "",
                f"{self._totals()}, {counted(self._dead, 'dead letter')}, {counted(self._records, 'throttle record')}",
            )
            _note("to try next:", *at_the_end(self._decision_id, self._batches, self._folder.candidate))

    def screen(self, width: int, height: int, note: str, commands: Sequence[str]) -> Text:
        """What a terminal of this size shows, in lines; of the records as many as there is room for."""
        with self._lock:
            self._read_rates()
            now = time.monotonic()
            minutes, passed = divmod(int(now - self._began_at), 60)
            head = f"the page: {self._page} · {minutes}:{passed:02} · {counted(self._events, 'usage event')} · {note}"
            if self._rates is None:
                return Text("\n".join([head, "starting", *self._log]), no_wrap=True, overflow="crop")
            table, _ = fitted(_TABLE.columns, self._table(wall_ms()), _TABLE, width)
            lending = wrap(self._lending or "", width)
            trouble, at = self._trouble
            last = [*([trouble] if trouble and now - at < _TROUBLE_SECONDS else []), *commands]
            top = [*table, _LEGEND, *lending]
            room = height - len(top) - len(last) - 1
            gap = [""] if room >= _MOST_RECORDS + 3 else []
            records = list(self._lines)[-max(room - 3 * len(gap), 1) :]
            lines = [head, *gap, *top, *gap, *records, *gap, *last]
            shown = Text("\n".join(lines), no_wrap=True, overflow="crop")
            shown.highlight_regex(r"(?m)^client .*$|^.* (kquota|broker) .* s$", "bold")
            return shown

    def _table(self, now_ms: int) -> list[tuple[str, ...]]:
        rates = _rates_of(self._rates)
        held = [row for row in self._last.values() if row["throttled_until_ms"] > now_ms]
        return [_client_row(one, rates.get(_key(one)), self._shares.of(_key(one)), held, now_ms) for one in _CLIENTS]

    def _read_rates(self) -> None:
        """Take the newest rates into the means, and look who lends; if there are any, and they are new."""
        gauges = None if self._gauges is None else self._gauges()
        if gauges is None or not gauges.rates.rows.num_rows or gauges.rates.rows is self._rates:
            return
        self._rates = gauges.rates.rows
        self._shares.add({key: _share(row) for key, row in _rates_of(self._rates).items()}, time.monotonic())
        tenants = gauges.quotas.pin().tenants
        self._lending = lending_in(self._rates, tenants) or (self._lending if any(t.lend for t in tenants) else None)

    def _throttles_written(self, written: pa.Table, _quota_version: int) -> None:
        for row in written.to_pylist():
            self._throttle(row)

    def _throttle(self, row: Row) -> None:
        client = row["user"], row["client_id"]
        with self._lock:
            self._records += 1
            if client in self._hushed:
                return
            self._last[Target.of(row)] = row
            is_first = self._decision_id is None
            self._decision_id = row["decision_id"][:SHOWN_DIGITS]
            self._lines.append(record_line(row))
            if client in _DO_NOT_LISTEN:
                self._hushed.add(client)
            if self._watched:
                return
            self._say(self._lines[-1])
            if client in _DO_NOT_LISTEN:
                _note(f"{'/'.join(client)} does not listen: its broker slows it. Its other records are not shown")
            if is_first:
                _note("to try meanwhile, in another terminal in this folder:", *while_it_runs())

    def _batch(self, report: BatchReport) -> None:
        with self._lock:
            self._batches += 1
            self._events += report.facts.good_count
            self._dead += report.facts.dead_count
            if self._lending is None and not self._watched:
                self._read_rates()
                if self._lending is not None:
                    self._say(self._lending)

    def _began(self, gauges: RunGauges) -> None:
        self._gauges = weakref.ref(gauges)

    def _break_silence(self, is_stopping: bool) -> None:
        with self._lock:
            if self._gauges is not None and time.monotonic() >= self._printed_at + _QUIET_SECONDS:
                held = [str(target) for target, row in self._last.items() if row["throttled_until_ms"] > wall_ms()]
                text = "stopping" if is_stopping else f"{self._totals()}; held: {', '.join(held) or 'no client'}"
                self._say(f"{clock_time(wall_ms())[:8]}  {text}")

    def _say(self, line: str) -> None:
        self._printed_at = time.monotonic()
        say(line)

    def _totals(self) -> str:
        return f"{counted(self._batches, 'micro-batch')}, {counted(self._events, 'usage event')}"


class Means:
    """The means of rates over time, since the first full window; one that is not given is 0."""

    def __init__(self) -> None:
        self._sums: defaultdict[Any, float] = defaultdict(float)
        self._values: Mapping[Any, float] = {}
        self._first: float | None = None
        self._last = 0.0

    def add(self, values: Mapping[Any, float], now: float) -> None:
        """Take the rates that hold from an instant on, in seconds."""
        if self._first is None:
            self._first = self._last = now + _WINDOW_SECONDS
        passed = max(now - self._last, 0.0)
        for key, value in self._values.items():
            self._sums[key] += value * passed
        self._values, self._last = values, max(now, self._last)

    def of(self, key: Any) -> float | None:
        """The mean of one until the last instant; None before."""
        span = self._last - self._first if self._first is not None else 0.0
        return self._sums[key] / span if span else None


def _key(client: DemoClient) -> tuple[str, str, str]:
    return client.user, client.client_id, _TYPES[client.role]


def _rates_of(rates: pa.Table | None) -> dict[tuple[str, str, str], Row]:
    """The rows of clients under an enforced bound, by user, client-id and quota type; of several the fullest."""
    rows = [] if rates is None else rates.to_pylist()
    bounded = [row for row in rows if row["client_id"] is not None and row["share"] is not None]
    enforced = sorted((row for row in bounded if row["mode"] == "enforce"), key=lambda row: float(row["share"]))
    return {(row["user"], row["client_id"], row["quota_type"]): row for row in enforced}


def _share(row: Row) -> float:
    """The part of the quota that a row's rate is; of a tenant's member of its own quota, not of what it is lent."""
    return float(row["observed"] / (row["own_bound"] or row["bound"]))


def _client_row(client: DemoClient, row: Row | None, mean: float | None, held: Sequence[Row], now_ms: int) -> Any:
    name, quota_type = f"{client.user}/{client.client_id}", _TYPES[client.role]
    shown_mean = _NONE if mean is None else f"{mean:.2f}"
    by = [one for one in held if client.listens and holds(one, client.user, client.client_id)]
    held_by = _NONE
    if by:
        held_by = f"kquota for {math.ceil((max(one['throttled_until_ms'] for one in by) - now_ms) / 1000)} s"
    if row is None:
        return name, _NONE, _NONE, _NONE, shown_mean, held_by
    if not by and (held_seconds := round((row["broker_held_share"] or 0.0) * 60)):
        held_by = f"broker {held_seconds}/60 s"
    elif not by and row["own_bound"] is not None and borrowed(row):
        held_by = f"{_NONE} ({row['tenant']} lends)"
    rate, quota = (rate_text(quota_type, one) for one in (row["observed"], row["own_bound"] or row["bound"]))
    return name, rate, quota, f"{_share(row):.2f}", shown_mean, held_by


def record_line(row: Row) -> str:
    """A record in one line: time, action, client, why, and the beginning of the decision's id."""
    who = str(Target.of(row))
    time_text = clock_time(wall_ms())[:8]
    return f"{time_text}  {verb(row):<8} {who:<14} {_why(row):<35} {row['decision_id'][:SHOWN_DIGITS]}"


def _why(row: Row) -> str:
    observed, bound = row["observed"], row["bound"]
    if row["action"] == "release":
        return _RELEASED.get(row["cause"]) or str(row["cause"])
    waits = f"waits {seconds(row['throttle_time_ms'])}"
    if bound is None:
        return waits
    if observed <= bound:
        return f"still owes {seconds(row['owed_ms'])}, {waits}"
    return f"{against_bound(row['quota_type'], observed, bound, is_named=False)}, {waits}"


def lending_in(rates: pa.Table, tenants: Sequence[Tenant]) -> str | None:
    """A sentence about a tenant that lends, by rows of the table `rates`; None if none does."""
    lending = [one for one in tenants if one.lend]
    members: defaultdict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in members_of(rates, lending).to_pylist() if lending else ():
        members[tuple(row[name] for name in _OF_TENANT)].append(row)
    texts = (lending_text(tenant, quota_type, found) for (tenant, quota_type, _), found in members.items())
    return next(filter(None, texts), None)


def _note(head: str, *commands: str) -> None:
    remark(f"          {head}", *(f"            {command}" for command in commands))
