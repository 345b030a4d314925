"""`kquota throttles tail`: the records of the throttle topic as they come, one line each."""

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pipeline.cli.options import BootstrapServers, CommandConfig, ConfigFile, flags
from pipeline.cli.quota_type import QuotaTypeOption, quota_type_of
from pipeline.cli.quotas.entity_flags import ClientNames, for_client
from pipeline.clock import wall_ms
from pipeline.errors import PipelineError
from schemas.names import THROTTLE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.gate.tail import Tailed, ThrottleTail

_FORMATS: Final = ("table", "json")
_POLL_MS: Final = 200


class SinceTwice(PipelineError):
    """Both ways to say where to begin were given."""

    exit_code = 2

    def __init__(self, since: str) -> None:
        super().__init__(f"'--since' must not be given with --from-beginning; got {since}", "leave out one of the two")


def _known_format(output: str) -> str:
    from pipeline.cli.output import UnknownFormat

    if output not in _FORMATS:
        raise UnknownFormat(output, _FORMATS)
    return output


@for_client
def tail(
    client: ClientNames,
    quota_type: QuotaTypeOption = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Begin with the oldest record that the topic still has.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            help="Begin with records written at this instant: 2h (ago), ISO 8601 in UTC, or epoch ms.",
            show_default="now",
        ),
    ] = None,
    config: ConfigFile = None,
    bootstrap_server: BootstrapServers = None,
    command_config: CommandConfig = None,
    topic: Annotated[str | None, typer.Option(help="The throttle topic.", show_default=THROTTLE_TOPIC)] = None,
    output: Annotated[
        str, typer.Option("-o", "--output", help="table or json, one line per record.", callback=_known_format)
    ] = "table",
) -> None:
    """Follow the throttle topic: one line for each throttle, extension, renewal and release, as clients read them.

    Reads committed records only, and needs no tables. -o json prints each record as it was published. Of a client the
    topic keeps the newest record, and older ones for a time. A broker that goes away is waited for. Ends with 0 on
    Ctrl-C, on SIGTERM, and when nobody reads the output any more.
    """
    from pipeline.cli.closed_pipe import until_reader_goes
    from pipeline.cli.instants import parse_instant
    from pipeline.cluster.access import ClusterAccess
    from pipeline.gate.tail import BEGINNING, ThrottleTail
    from pipeline.gate.topic_reader import ThrottleTopicReader
    from pipeline.log import set_up_logging
    from pipeline.settings.loading import load_settings

    if since is not None and from_beginning:
        raise SinceTwice(since)
    since_ms = BEGINNING if from_beginning else None if since is None else parse_instant("--since", since, wall_ms())
    wanted_type = quota_type_of(quota_type)
    settings = load_settings(config, flags(bootstrap_server, command_config, topics={"throttle_topic": topic}))
    set_up_logging(settings.log_level)

    def show(tailed: "Tailed") -> None:
        record = tailed.record
        wanted = (client.user, client.client_id, wanted_type)
        has = (record.user, record.client_id, record.quota_type)
        if all(one in {None, other} for one, other in zip(wanted, has, strict=True)):
            sys.stdout.write(f"{record.model_dump_json() if output == 'json' else _line(tailed)}\n")

    access = ClusterAccess.from_settings(settings.kafka)
    name = settings.kafka.throttle_topic
    with closing(ThrottleTopicReader(access.bootstrap_servers, name, access.client_options())) as reader:
        try:
            reader.open()
            with until_reader_goes():
                _follow(ThrottleTail(reader, since_ms), show)
        except Exception as exc:
            known = reader.as_pipeline_error(exc)
            if known is None or known is exc:
                raise
            raise known from exc


def _follow(topic: "ThrottleTail", show: "Callable[[Tailed], None]") -> None:
    from pipeline.cli.closed_pipe import reader_has_gone
    from pipeline.cli.signals import wait_until_stopped

    with wait_until_stopped() as wait:
        while not (wait(0) or reader_has_gone()):
            for tailed in topic.step(_POLL_MS):
                show(tailed)
            sys.stdout.flush()


def _line(tailed: "Tailed") -> str:
    from pipeline.throttle.record_line import line_of_record
    from pipeline.throttle.shown import clock_time

    return f"{clock_time(tailed.record.written_ms)}  {line_of_record(tailed.record, tailed.extends)}"
