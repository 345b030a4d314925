"""`kquota observe`: what clients use under the brokers' own quotas, live, and what follows from it. Writes nothing."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from pipeline.cli.meter import Targets, sources_of
from pipeline.cli.options import ClusterSource, wait_until_stopped, writable
from pipeline.cli.output import Layout, print_rows, remark, say, until_reader_goes
from pipeline.clock import SystemClock, clock_time
from pipeline.command_line import command_text
from pipeline.documents import json_text
from pipeline.errors import UsageError
from quota.entity import QUOTA_TYPES
from quota.units import age_text, rate_text, rate_unit

if TYPE_CHECKING:
    from pipeline.clock import Clock
    from pipeline.cluster.access import ClusterAccess
    from pipeline.observe.findings import Findings
    from pipeline.observe.observation import Line, Observation
    from pipeline.observe.sources import FollowedQuotas, Source, SourceState

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
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the findings to this file, as JSON.", callback=writable)
    ] = None,
    name_map: Annotated[
        list[str] | None,
        typer.Option(
            "--map", metavar="NAME=MEANING", help="Other names on the pages, as of kquota meter prometheus; repeatable."
        ),
    ] = None,
    source: ClusterSource,
) -> None:
    """Watch a cluster for some minutes, and say who gets more than its quota, who would be throttled, and why.

    Shows live how much each client uses of its native quota, on each broker and in sum. At the end, or at Ctrl-C: who
    gets more than its quota because it holds per broker; who would be throttled if it held for the cluster; whose bound
    is too small to work with; who has no quota. Needs no job, no tables and no Java. It only reads: DescribeConfigs on
    the cluster, and Read on the usage topic if that is the source.
    """
    from pipeline.cluster.access import ClusterAccess

    if bool(targets) == bool(usage_topic):
        msg = "give one source of usage: --targets or --usage-topic"
        raise UsageError(msg, "for example --targets http://broker1:9404/metrics,http://broker2:9404/metrics")
    access = ClusterAccess.from_settings(source.settings().kafka)
    with _without_log():
        found, progress = _watched(
            access, _opener(access, targets or [], usage_topic, name_map or []), minutes * 60_000
        )
    _print_summary(found, progress, access.bootstrap_servers)
    if json_file is not None:
        _write(found, progress, access.bootstrap_servers, json_file)


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
        quotas: How many entities have native quotas.
        has_no_sensors: As of `Source`.
    """

    now_ms: int
    observed_ms: int
    span_ms: int
    states: "Sequence[SourceState]"
    quotas: int
    quota_trouble: str
    has_no_sensors: bool


Open = Callable[["FollowedQuotas", "Clock"], "Source"]
Show = Callable[[Progress, "Sequence[Line]"], None]


@dataclass(slots=True)
class _Watch:
    """What is observed, and from where."""

    seen: "Observation"
    source: "Source"
    quotas: "FollowedQuotas"
    clock: "Clock"
    span_ms: int
    begun_ms: int
    quota_count: int = 0

    def step(self) -> int:
        """Take in what there is; returns for how long has been observed."""
        from pipeline.brokers.native import imported
        from quota.snapshot import QuotaSnapshot

        native = self.quotas.take()
        if native is not None:
            declared, _ = imported(native, factor=1)
            rows = [{"user": one.user, "client_id": one.client_id, **one.bounds} for one in declared]
            self.quota_count = len(rows)
            self.seen.load(QuotaSnapshot.from_rows(rows, version=0))
        self.seen.add(self.source.take())
        now = self.clock.now()
        self.seen.settle(now.wall_ms)
        return now.steady_ms - self.begun_ms

    def progress(self, observed_ms: int) -> Progress:
        """The state of now."""
        now_ms, states = self.clock.now().wall_ms, self.source.states()
        quotas, trouble = self.quota_count, self.quotas.trouble
        return Progress(now_ms, observed_ms, self.span_ms, states, quotas, trouble, self.source.has_no_sensors)

    def follow(self, wait: Callable[[float], bool], show: Show) -> None:
        """Show it again and again, until the time is over or it is stopped; at once when there is a first figure."""
        due_ms, has_lines, observed_ms = 0, False, 0
        while observed_ms < self.span_ms and not wait(_STEP_SECONDS):
            observed_ms = self.step()
            if observed_ms >= due_ms or (not has_lines and self.seen.brokers):
                lines = self.seen.lines(self.clock.now().wall_ms)
                has_lines = bool(self.seen.brokers)
                due_ms = observed_ms + _PRINT_MS
                show(self.progress(observed_ms), lines)


def _opener(
    access: "ClusterAccess",
    targets: Sequence[str],
    usage_topic: str | None,
    name_map: Sequence[str],
) -> Open:
    """Opens the source that the options name. Options that cannot be read are refused before."""
    from pipeline.observe.sources import ScrapedSource, TopicSource

    if usage_topic is not None:
        return lambda quotas, clock: TopicSource(access, usage_topic, quotas.broker_ids, clock)
    names, of_cluster = sources_of(targets, name_map)
    return lambda _quotas, clock: ScrapedSource(of_cluster(access), names, clock)


def _watched(access: "ClusterAccess", open_source: Open, span_ms: float) -> "tuple[Findings, Progress]":
    """Observe until the time is over, or the command is to stop."""
    from pipeline.observe.findings import findings_of
    from pipeline.observe.observation import Observation
    from pipeline.observe.sources import FollowedQuotas

    clock = SystemClock()
    with FollowedQuotas(access) as quotas, closing(open_source(quotas, clock)) as source:
        seen = Observation(source.lag_ms, source.is_exact)
        watch = _Watch(seen, source, quotas, clock, round(span_ms), clock.now().steady_ms)
        with until_reader_goes(), wait_until_stopped() as wait:
            watch.follow(wait, print_view)
        return findings_of(seen.figures()), watch.progress(clock.now().steady_ms - watch.begun_ms)


def print_view(progress: Progress, lines: "Sequence[Line]") -> None:
    """Print how far it is, what does not answer, and the most critical clients."""
    say(*_head(progress))
    print_rows([_row(line) for line in lines[:_PRINTED_LINES]], "table", _LAYOUT)
    if not lines:
        say("no client has used anything yet")
    if len(lines) > _PRINTED_LINES:
        say(f"and {len(lines) - _PRINTED_LINES} more, further from their bounds")
    say("")


# The view of now.

_LAYOUT: Final = Layout(dropped_first=("brokers", "type"))
_MOST_BROKERS: Final = 4
_BAR_CELLS: Final = 8
_EIGHTHS: Final = "▏▎▍▌▋▊▉"
_MANY: Final = 10


def _head(progress: Progress) -> list[str]:
    answering = sum(not state.trouble for state in progress.states)
    left = age_text(max(progress.span_ms - progress.observed_ms, 0))
    lines = [
        f"{clock_time(progress.now_ms)[:-2]} UTC  observed {age_text(progress.observed_ms)}, {left} left · "
        f"{answering} of {len(progress.states)} brokers answer · {progress.quotas} native quotas"
    ]
    lines += [f"{state.name}: {state.notice}" for state in progress.states if state.notice]
    return [*lines, *([f"quotas as of before: {progress.quota_trouble}"] if progress.quota_trouble else [])]


def _row(line: "Line") -> dict[str, str]:
    sensor = line.sensor
    quota_type = QUOTA_TYPES[sensor.quota_type]
    unit, size = rate_unit(quota_type, sensor.bound or line.observed)
    if sensor.bound is None:
        used, rate = "", f"{line.observed / size:.1f} {unit}, no quota"
    else:
        used, rate = _used_text(line.used), f"{line.observed / size:.1f} of {sensor.bound / size:.1f} {unit}"
    largest = sorted(line.by_broker.items(), key=lambda one: -one[1])
    brokers = [f"{name or '?'}: {amount / size:.1f}" for name, amount in largest[:_MOST_BROKERS]]
    brokers += [f"and {len(largest) - _MOST_BROKERS} more"] if len(largest) > _MOST_BROKERS else []
    who = f"{sensor.user or '*'}/{sensor.client_id or '*'}"
    return {
        **{"client": who, "type": quota_type.partition("_")[0], "used": used},
        **{"rate": rate, "brokers": ", ".join(brokers)},
    }


def bar(used: float) -> str:
    """A bar of eight cells: empty at 0, full at the bound and above it; anything above 0 can be seen.

    >>> bar(0.5), bar(0.001), bar(7)
    ('████    ', '▏       ', '████████')
    """
    eighths = min(max(int(used * _BAR_CELLS * 8), 1 if used > 0 else 0), _BAR_CELLS * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest - 1] if rest else "")).ljust(_BAR_CELLS)


def _used_text(used: float) -> str:
    """The share of a bound: a bar, and percent or a multiple of T; cut off, so that 100 % is not below the bound."""
    return f"{bar(used)} " + (f"{int(used * 100)} %" if used < _MANY else f"{int(used)} × T")


# What is left at the end: a summary, a document.

_FINDINGS: Final = Layout(texts=("why",))

HEADINGS: Final = {
    "over_quota": "More than its quota, because it holds per broker",
    "would_be_held": "Would be throttled, if the quota held for the cluster",
    "too_small": "A bound too small to work with",
    "no_quota": "No quota",
}
NONE_FOUND: Final = {
    "over_quota": "No client got more than its quota.",
    "would_be_held": "No client would be throttled.",
    "too_small": "No bound is too small for what its clients send.",
    "no_quota": "Every client has a quota.",
}


def readable(findings: "Findings", name: str) -> list[dict[str, Any]]:
    """The rows of a list for people; all rows have the same keys."""
    return [_readable(name, one) for one in getattr(findings, name)]


def _readable(name: str, one: Any) -> dict[str, Any]:
    client = f"{one.user or '*'}/{one.client_id or '*'}"
    who = {"client": client, "type": one.quota_type.partition("_")[0]}

    def rate(value: float) -> str:
        return rate_text(one.quota_type, value)

    if name == "over_quota":
        return who | {"× T": f"{one.times:.2f}", "O": rate(one.observed), "why": one.reason}
    if name == "would_be_held":
        return who | {"held": f"{one.held_share:.0%}", "longest": age_text(one.longest_wait_ms), "why": one.reason}
    figure = {"T": rate(one.bound)} if name == "too_small" else {"p99": rate(one.p99)}
    return who | figure | {"suggested": rate(one.suggested), "why": one.reason}


def next_steps(bootstrap_servers: str) -> list[tuple[str, str]]:
    """What each of three commands does, and the command, as it can be pasted."""
    address = "--bootstrap-server", bootstrap_servers

    def of_cluster(*words: str) -> str:
        return command_text(*words, *address, about="cluster")

    imports = of_cluster("quotas", "import", "--from-cluster", "--no-confirm")
    return [
        ("these quotas as a table in this folder", f"{command_text('tables', 'create')} && {imports}"),
        ("decide, record, throttle no client", f"{command_text('mode', 'shadow')} && {of_cluster('topics', 'create')}"),
        ("start the job (docs/adopt.md has the four weeks)", of_cluster("run")),
    ]


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
    for name, heading in HEADINGS.items():
        rows = readable(findings, name)
        say("", heading if rows else NONE_FOUND[name])
        print_rows(rows[:_SUMMARY_ROWS], "table", _FINDINGS)
        if len(rows) > _SUMMARY_ROWS:
            say(f"and {len(rows) - _SUMMARY_ROWS} more: see --json")
    say("", f"Not known: {'; '.join(findings.not_known)}.", "", "What next:")
    for what, command in next_steps(bootstrap_servers):
        say(f"  # {what}", f"  {command}")


def _write(findings: "Findings", progress: Progress, bootstrap_servers: str, json_file: Path) -> None:
    states = {state.name: state.notice or "answers" for state in progress.states}
    document: dict[str, Any] = {"cluster": bootstrap_servers, "sources": states, **findings.to_document()}
    document["next"] = [command for _, command in next_steps(bootstrap_servers)]
    json_file.write_text(f"{json_text(document, indent=2)}\n", encoding="utf-8")
    remark(f"written: {json_file}")
