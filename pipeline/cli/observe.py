"""`kquota observe`: what clients use under the quotas in force, live, and what follows. It writes nothing."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from pipeline.cli.meter import Targets, exporters_of, read_targets
from pipeline.cli.options import JobSource, Output
from pipeline.cli.output import Layout, is_table, print_document, print_rows, remark, say, until_reader_goes
from pipeline.clock import Clock, SystemClock, clock_time
from pipeline.command_line import command_text
from pipeline.errors import UsageError
from pipeline.process import wait_until_stopped
from quota.entity import QUOTA_TYPES
from quota.units import age_text, rate_text, rate_unit

if TYPE_CHECKING:
    from pipeline.observe.findings import Findings
    from pipeline.observe.observation import Line, Observation
    from pipeline.observe.sources import InForce, Source, SourceState
    from quota.broker_levels.entries import EntryKey


_STEP_SECONDS: Final = 0.05
_PRINT_MS: Final = 10_000
_PRINTED_LINES: Final = 10
_SUMMARY_ROWS: Final = 10


def observe(
    *,
    targets: Targets = None,
    usage_topic: Annotated[
        str | None, typer.Option(help="Or the usage topic, which a reporter or meter fills.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="How long to observe.", min=0.1)] = 10,
    source: JobSource,
    output: Output = "table",
) -> None:
    """Watch a cluster for some minutes, and say who gets more than its quota, who would be throttled, and why.

    Shows live how much each client uses of its native quota, on each broker and in sum; -o json and yaml do not. At the
    end, or at Ctrl-C: who gets more than its quota because it holds per broker; who would be throttled if it held for
    the cluster; which bounds are too small to work with; who has no bound for a quota type. Needs no job, no tables and
    no Java. It only reads: DescribeConfigs on the cluster, and Read on the usage topic if that is the source.

    Where the tables of a job that ran for this cluster are found, or given by --tables, the quotas are theirs, and not
    the values that a sync or kquota meter enable has written to the brokers. The usage topic is the source then, if
    none is given. While the job runs, rates and holds are its own: those of the dashboard.
    """
    from pipeline.brokers.native import NativeQuotas
    from pipeline.cluster.connecting import ClusterAccess
    from pipeline.observe.findings import findings_of
    from pipeline.observe.observation import Observation
    from pipeline.observe.sources import ScrapedSource, TopicSource, newest_batch_in, quotas_in_force

    settings, is_given = source.settings(), source.tables is not None
    batch = newest_batch_in(settings, is_given=is_given)
    if (targets and usage_topic) or not (targets or usage_topic or batch):
        msg = "give one source of usage: --targets or --usage-topic"
        raise UsageError(msg, "for example --targets http://broker1:9404/metrics,http://broker2:9404/metrics")
    access, clock = ClusterAccess.from_settings(settings.kafka), SystemClock()
    # Options that cannot be read are refused before it connects.
    given = read_targets(targets) if targets else []
    with _without_log():
        with NativeQuotas(access) as brokers:
            native, broker_ids = brokers.describe(), brokers.broker_ids()
        in_force = quotas_in_force(settings, access, native, batch, is_given=is_given)
        if in_force.note:
            remark(in_force.note)
        used: Source = (
            ScrapedSource(exporters_of(given, access), clock)
            if given
            else TopicSource(access, usage_topic or settings.kafka.usage_topic, broker_ids, clock)
        )
        with closing(used):
            seen = Observation(in_force.quotas, used.lag_ms, used.is_exact, in_force.scope)
            watch = _Watch(seen, used, in_force, clock, round(minutes * 60_000))
            with until_reader_goes(), wait_until_stopped() as wait:
                watch.follow(wait, print_view if is_table(output) else lambda _progress, _lines: None)
            progress = watch.progress()
            found = findings_of(seen.figures(), is_of_job=progress.is_of_job)
    if is_table(output):
        _print_summary(found, progress, access.bootstrap_servers)
    else:
        print_document(document_of(found, progress, access.bootstrap_servers), output)


@contextmanager
def _without_log() -> Iterator[None]:
    """The view itself shows what does not answer."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


class Progress(NamedTuple):
    """How an observation goes on.

    Attributes:
        in_force: The quotas.
        has_no_sensors: As of `Source`.
        is_of_job: Whether the rates are those of the job that manages the cluster.
    """

    now_ms: int
    observed_ms: int
    span_ms: int
    states: "Sequence[SourceState]"
    in_force: "InForce"
    has_no_sensors: bool
    is_of_job: bool = False

    @property
    def quotas(self) -> str:
        """Which quotas and rates these are, in words."""
        quotas = self.in_force.quotas
        if self.in_force.root is None:
            return f"{len(quotas.quotas)} native quotas"
        return f"quotas v{quotas.version}, {'rates of their job' if self.is_of_job else 'no rates of their job now'}"


class _Watch:
    """What is observed, and from where."""

    def __init__(
        self, seen: "Observation", source: "Source", in_force: "InForce", clock: "Clock", span_ms: int
    ) -> None:
        self._seen, self._source, self._in_force, self._clock, self._span_ms = seen, source, in_force, clock, span_ms
        self._is_of_job = False
        self._begun_ms = clock.now().steady_ms

    def follow(self, wait: Callable[[float], bool], show: "Callable[[Progress, Sequence[Line]], None]") -> None:
        """Show it repeatedly, until the time is over or it is stopped; at once when there is a first figure."""
        due_ms, has_lines, progress = 0, False, self.progress()
        while progress.observed_ms < self._span_ms and not wait(_STEP_SECONDS):
            self._seen.add(self._source.take())
            self._seen.settle(self._clock.now().wall_ms)
            progress = self.progress()
            if progress.observed_ms >= due_ms or (not has_lines and self._seen.brokers):
                due_ms, lines = progress.observed_ms + _PRINT_MS, self._lines(progress.now_ms)
                has_lines = bool(lines or self._seen.brokers)
                show(self.progress(), lines)

    def progress(self) -> Progress:
        """The state of now."""
        now, source = self._clock.now(), self._source
        about = source.states(), self._in_force, source.has_no_sensors, self._is_of_job
        return Progress(now.wall_ms, now.steady_ms - self._begun_ms, self._span_ms, *about)

    def _lines(self, now_ms: int) -> "Sequence[Line]":
        from pipeline.observe.sources import lines_of_job

        of_job = lines_of_job(self._in_force, now_ms)
        self._is_of_job = of_job is not None
        return self._seen.lines(now_ms) if of_job is None else of_job


def print_view(progress: Progress, lines: "Sequence[Line]") -> None:
    """Print how far it is, what does not answer, and the most critical clients."""
    say(*_head(progress))
    shown = [_view_row(line, progress) for line in lines[:_PRINTED_LINES]]
    if not any(row["brokers"] for row in shown):
        shown = [{name: row[name] for name in row if name != "brokers"} for row in shown]
    print_rows(shown, "table", _VIEW)
    if not lines:
        say("no client has used anything yet")
    if len(lines) > _PRINTED_LINES:
        say(f"and {len(lines) - _PRINTED_LINES} more, further from their bounds")
    say("")


# The view of now.

_VIEW: Final = Layout(dropped_first=("brokers", "type"), texts=("held",))
_MOST_BROKERS: Final = 4
_MANY: Final = 10


def _head(progress: Progress) -> list[str]:
    answering = sum(not state.trouble for state in progress.states)
    left = age_text(max(progress.span_ms - progress.observed_ms, 0))
    lines = [
        f"{clock_time(progress.now_ms)[:-2]} UTC  observed {age_text(progress.observed_ms)}, {left} left · "
        f"{answering} of {len(progress.states)} brokers answer · {progress.quotas}"
    ]
    return lines + [f"{state.name}: {state.notice}" for state in progress.states if state.notice]


def _view_row(line: "Line", progress: Progress) -> dict[str, str]:
    sensor = line.sensor
    quota_type = QUOTA_TYPES[sensor.quota_type]
    unit, size = rate_unit(quota_type, sensor.bound or line.observed)
    if sensor.bound is None:
        used, rate = "", f"{line.observed / size:.1f} {unit}, {'exempt' if sensor.mode == 'exempt' else 'no bound'}"
    else:
        used, rate = _used_text(line.used), f"{line.observed / size:.1f} of {sensor.bound / size:.1f} {unit}"
    largest = sorted(line.by_broker.items(), key=lambda one: -one[1])
    brokers = [f"{name or '?'}: {amount / size:.1f}" for name, amount in largest[:_MOST_BROKERS] if any(line.by_broker)]
    brokers += [f"and {len(largest) - _MOST_BROKERS} more"] if len(largest) > _MOST_BROKERS else []
    who = f"{sensor.user or '*'}/{sensor.client_id or '*'}"
    shown = {"client": who, "type": quota_type.partition("_")[0], "used": used, "rate": rate}
    shown["brokers"] = ", ".join(brokers)
    return shown | ({"held": _held_text(line, progress.now_ms)} if progress.is_of_job else {})


def _held_text(line: "Line", now_ms: int) -> str:
    """Who holds clients of a sensor, and for how long: kquota, its brokers, or both."""
    from pipeline.tables.rates import broker_hold_text

    if line.sensor.mode == "shadow":
        return "shadow mode"
    left_ms = (line.held_until_ms or 0) - now_ms
    by_kquota = f"by kquota, {age_text(max(left_ms, 1_000))} more" if left_ms > 0 else None
    by_brokers = broker_hold_text(round((line.broker_held_share or 0) * 60))
    return "; ".join(filter(None, [by_kquota, by_brokers]))


def _used_text(used: float) -> str:
    """The share of a bound, in percent or as a multiple of T; cut off, so that 100 % is not below the bound."""
    return f"{int(used * 100)} %" if used < _MANY else f"{int(used)} × T"


# What is left at the end: a summary, a document.

_FINDINGS: Final = Layout(texts=("why",))

FOREIGN: Final = "On the brokers, and neither in the quota table nor written by kquota"
HEADINGS: Final = {
    "over_quota": "More than its quota, because it holds per broker",
    "would_be_held": "Would be throttled, if the quota held for the cluster",
    "too_small": "A bound too small to work with",
    "no_quota": "No bound for a quota type that it uses",
}
NONE_FOUND: Final = {
    "over_quota": "No client got more than its quota.",
    "would_be_held": "No client would be throttled.",
    "too_small": "No bound is too small for what its clients send.",
    "no_quota": "Every client has a bound for each quota type that it uses.",
}


def readable(findings: "Findings", name: str) -> list[dict[str, Any]]:
    """The rows of a list that is not None, for people; all rows have the same keys."""
    return [_readable_finding(name, one) for one in getattr(findings, name)]


def _readable_value(key: "EntryKey", value: float) -> dict[str, Any]:
    return {**_who(key), "value": rate_text(key.quota_type, value)}


def _who(one: Any) -> dict[str, Any]:
    return {"client": f"{one.user or '*'}/{one.client_id or '*'}", "type": one.quota_type.partition("_")[0]}


def _readable_finding(name: str, one: Any) -> dict[str, Any]:
    who = _who(one)

    def rate(value: float) -> str:
        return rate_text(one.quota_type, value)

    if name == "over_quota":
        return who | {"× T": f"{one.times:.2f}", "O": rate(one.observed), "why": one.reason}
    if name == "would_be_held":
        return who | {"held": f"{one.held_share:.0%}", "longest": age_text(one.longest_wait_ms), "why": one.reason}
    figure = {"T": rate(one.bound)} if name == "too_small" else {"p99": rate(one.p99)}
    return who | figure | {"suggested": rate(one.suggested), "why": one.reason}


def next_steps(bootstrap_servers: str, is_managed: bool = False, is_of_job: bool = False) -> list[tuple[str, str]]:
    """What each of some commands does, and the command, as it can be pasted.

    * `is_managed`: a job of kquota manages the cluster; `is_of_job`: it runs.
    """
    address = "--bootstrap-server", bootstrap_servers

    def of_cluster(*words: str) -> str:
        return command_text(*words, *address, about="cluster")

    if is_managed:
        held = ("who is held now, and why", command_text("throttles", "list"))
        if not is_of_job:
            held = ("no usage has come, or the job does not run: see which", command_text("status"))
        return [held, ("each bound with the rate under it", command_text("quotas", "describe", "-o", "wide"))]
    imports = of_cluster("quotas", "import")
    return [
        ("these quotas as a table in this folder", f"{command_text('tables', 'create')} && {imports}"),
        ("decide, record, throttle no client", f"{command_text('mode', 'shadow')} && {of_cluster('topics', 'create')}"),
        ("start the job (docs/adopt.md has the four weeks)", of_cluster("run")),
    ]


def _steps_after(progress: Progress, bootstrap_servers: str) -> list[tuple[str, str]]:
    return next_steps(bootstrap_servers, progress.in_force.root is not None, progress.is_of_job)


def _print_summary(findings: "Findings", progress: Progress, bootstrap_servers: str) -> None:
    say(f"observed {age_text(findings.seconds * 1000)}, {findings.clients} clients")
    for state in progress.states:
        if state.notice:
            say(f"{state.name}: {state.notice}")
    if progress.has_no_sensors:
        enable = command_text("meter", "enable", "--bootstrap-server", bootstrap_servers, about="cluster")
        say(
            "the brokers show no quota sensors. If their exporter has rules for them (docs/meter.md#scrapes), then no "
            f"client has a quota, and brokers measure no other. Fix: {enable}"
        )
    foreign = progress.in_force.foreign
    if foreign:
        _print_list(FOREIGN, [_readable_value(key, value) for key, value in foreign.items()])
    for name, heading in HEADINGS.items():
        if getattr(findings, name) is not None:
            rows = readable(findings, name)
            _print_list(heading if rows else NONE_FOUND[name], rows)
    say("", f"Not known: {'; '.join(findings.not_known)}.", "", "What next:")
    for what, command in _steps_after(progress, bootstrap_servers):
        say(f"  # {what}", f"  {command}")


def _print_list(heading: str, rows: Sequence[Mapping[str, Any]]) -> None:
    say("", heading)
    print_rows(rows[:_SUMMARY_ROWS], "table", _FINDINGS)
    if len(rows) > _SUMMARY_ROWS:
        say(f"and {len(rows) - _SUMMARY_ROWS} more: see -o json")


def document_of(findings: "Findings", progress: Progress, bootstrap_servers: str) -> dict[str, Any]:
    """What was found, for programs. The version of the quotas is null if they are those of the brokers."""
    in_force = progress.in_force
    return {
        "cluster": bootstrap_servers,
        "sources": {state.name: state.notice or "answers" for state in progress.states},
        "quotas": {
            "version": None if in_force.root is None else in_force.quotas.version,
            "of_job": progress.is_of_job,
            "foreign": [{**key._asdict(), "value": value} for key, value in in_force.foreign.items()],
        },
        **findings.to_document(),
        "next": [command for _, command in _steps_after(progress, bootstrap_servers)],
    }
