"""`kquota simulate`: usage events and quotas from files, decided by the job's own engine and purgatory."""

import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import ConfigFile, Output
from pipeline.cli.table_layout import Layout
from pipeline.errors import printable

if TYPE_CHECKING:
    from pipeline.cli.output import Row
    from pipeline.simulation.run import ClientStory
    from pipeline.throttle.outbox import Written
    from schemas.names import ClientKey
    from schemas.usage import UsageEvent

_SHOWN_REFUSALS = 10
_CLIENTS: Final = Layout(dropped_first=("events", "releases", "renewals"))


def simulate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Usage events (JSON lines, as on the topic) and quotas (JSON or YAML).", show_default=False
        ),
    ] = None,
    more_files: Annotated[
        list[Path] | None, typer.Option("-f", "--file", help="The same; may be repeated.", show_default=False)
    ] = None,
    trigger_ms: Annotated[
        int | None, typer.Option(help="How much event time a micro-batch covers, in ms.", min=1)
    ] = None,
    scope: Annotated[
        str,
        typer.Option(
            help="Whether a quota bounds a client in the whole cluster, or at each broker: cluster or broker."
        ),
    ] = "cluster",
    config: ConfigFile = None,
    output: Output = "table",
) -> None:
    """Print which throttles usage events would lead to: every throttle, renewal and release, then each client.

    Needs no broker, no Spark and no tables. Events are put into micro-batches by their own times. The simulated clients
    ignore throttles: usage is what the files contain.
    """
    from pipeline.cli.output import is_table
    from pipeline.settings.loading import load_settings
    from pipeline.simulation.batches import batches_of_events
    from pipeline.simulation.run import Simulation
    from pipeline.throttle.log_line import line_of
    from pipeline.throttle.shown import clock_time

    if scope not in {"cluster", "broker"}:
        message = f"'--scope' must be cluster or broker; got {scope}"
        raise typer.BadParameter(message)
    settings = load_settings(config)
    events, quotas = _read([*(files or ()), *(more_files or ())])
    trigger = trigger_ms or settings.stream.trigger_ms
    records: list[dict[str, Any]] = []

    def tell(now_ms: int, record: "Written") -> None:
        if is_table(output):
            sys.stdout.write(f"{clock_time(now_ms)}  {line_of(record, quotas.version)}\n")
        else:
            records.append(_record_row(now_ms, record))

    simulation = Simulation(settings, trigger, quotas, scope, tell)  # type: ignore[arg-type]
    count = simulation.run(batches_of_events(events, trigger, settings.engine.sample_window_ms))
    clients = _client_rows(events, simulation.clients, scope == "broker")
    _print(records, clients, output)
    sys.stderr.write(f"{len(events)} events in {count} micro-batches of {trigger} ms, {len(quotas.quotas)} quotas\n")


def _read(files: list[Path]) -> "tuple[list[UsageEvent], Any]":
    from pipeline.replay.quotas import snapshot_of_text
    from pipeline.simulation.events import holds_events, read_events
    from pipeline.text_file import read_text_file

    events: list[UsageEvent] = []
    snapshot = None
    for path in files:
        text = read_text_file("FILE", path)
        if not holds_events(text):
            if snapshot is not None:
                message = f"'FILE' must hold quotas once; got a second file of them, {path}"
                raise typer.BadParameter(message)
            snapshot = snapshot_of_text(path, text, version=1)
            continue
        found = read_events(text)
        events += found.events
        for sentence in found.refused[:_SHOWN_REFUSALS]:
            sys.stderr.write(f"refused: {path}, {printable(sentence)}\n")
        if len(found.refused) > _SHOWN_REFUSALS:
            sys.stderr.write(f"refused: {path}, {len(found.refused) - _SHOWN_REFUSALS} more\n")
    if not events or snapshot is None:
        message = "give at least one file with usage events, and one with quotas"
        raise typer.BadParameter(message)
    return events, snapshot


def _client_rows(
    events: "list[UsageEvent]", stories: "dict[ClientKey, ClientStory]", by_broker: bool
) -> list[dict[str, Any]]:
    from pipeline.simulation.run import ClientStory
    from schemas.names import ClientKey

    used: dict[ClientKey, list[int]] = defaultdict(lambda: [0, 0, 0])
    for event in events:
        sums = used[ClientKey(event.broker_id if by_broker else "", event.user, event.client_id)]
        sums[0] += 1
        sums[1] += event.produced_bytes or 0
        sums[2] += event.fetched_bytes or 0
    first_ms, last_ms = min(e.event_time_ms for e in events), max(e.event_time_ms for e in events)
    seconds = max(last_ms - first_ms, 1_000) / 1000
    rows = []
    for key in sorted(used):
        story = stories.get(key, ClientStory())
        rows.append(
            {
                **({"broker_id": key.broker_id} if by_broker else {}),
                "user": key.user,
                "client_id": key.client_id,
                "events": used[key][0],
                "produced_kB_per_s": round(used[key][1] / seconds / 1000, 1),
                "fetched_kB_per_s": round(used[key][2] / seconds / 1000, 1),
                "throttles": story.violations,
                "renewals": story.renewals,
                "releases": story.releases,
                "throttled_s": round(story.throttle_ms / 1000, 1),
                "shadowed": story.shadowed,
            }
        )
    return rows


def _record_row(now_ms: int, record: "Written") -> dict[str, Any]:
    publication = record.publication
    return {
        "written_at_ms": now_ms,
        "action": publication.action,
        "cause": publication.cause,
        **publication.key._asdict(),
        "throttle_time_ms": publication.throttle_time_ms,
        "throttled_until_ms": record.throttled_until_ms,
        "quota_type": publication.reason.quota_type,
        "observed": publication.reason.observed,
        "bound": publication.reason.bound,
        "window_ms": publication.reason.window_ms,
        "owed_ms": publication.reason.owed_ms,
        "decision_id": publication.decision_id,
    }


def _shown(row: "Row") -> "Row":
    """A row with short headers: the names of the data do not fit a terminal."""
    return {name.replace("_kB_per_s", " kB/s"): value for name, value in row.items()}


def _print(records: list[dict[str, Any]], clients: list[dict[str, Any]], output: str) -> None:
    from pipeline.cli.output import is_table, print_rows

    if is_table(output):
        sys.stdout.write("\n")
    print_rows(clients, output, _CLIENTS, shown=_shown, document=[{"records": records, "clients": clients}])
