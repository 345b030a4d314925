"""`kquota quotas describe`: the quotas, by default in kafka-configs' lines."""

import sys
from typing import TYPE_CHECKING, Any, Final

import typer

from pipeline.cli.options import ConfigFile, QuotasOutput, TablesRoot, flags
from pipeline.cli.quotas.entity import EntityFilter
from pipeline.cli.quotas.entity_flags import for_entities
from pipeline.cli.table_layout import Layout
from pipeline.command_line import command_text
from pipeline.errors import printable
from quota.entity import DEFAULT, label, may_apply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pipeline.tables.quotas.table import QuotaTableState

_LAYOUT: Final = Layout(dropped_first=("note", "owner"), texts=("note",))
_SHOWN: Final = 10


@for_entities
def describe(
    entity: EntityFilter,
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: QuotasOutput = "kafka",
) -> None:
    """Print the quotas, all of them or those of the entity given; exits with 3 if there are none.

    The filter is kafka-configs': --user alice is alice's own quota, not those of her clients; --entity-type users
    --entity-name alice --entity-type clients are all of these. -o wide shows the current rate beside each bound, the
    nearest to its bound first: the rates at the newest micro-batch, from the stored usage.
    """
    from pipeline.settings.loading import load_settings
    from pipeline.tables.from_settings import open_quota_table

    settings = load_settings(config, flags(tables=tables))
    table = open_quota_table(settings.tables)

    def with_rates(rows: "Sequence[Mapping[str, Any]]") -> None:
        from pipeline.cli.quotas.rates import print_with_rates

        print_with_rates(settings, table, rows)

    print_quotas(table.read(), entity, output, wide=with_rates)


def print_quotas(
    state: "QuotaTableState",
    wanted: EntityFilter,
    output: str,
    wide: "Callable[[Sequence[Mapping[str, Any]]], None] | None" = None,
) -> None:
    """Print the quotas of one version that are meant, and on stderr the version.

    Args:
        state: The version.
        wanted: Which ones.
        output: The format.
        wide: Prints them for `-o wide`; None = as a table with all columns.

    Raises:
        typer.Exit: With 3, if there are none.
    """
    from pipeline.cli.output import print_rows
    from pipeline.cli.quotas.kafka_lines import described_line

    rows = [row for row in state.rows if wanted.matches(row)]
    if output == "wide" and wide is not None and rows:
        wide(rows)
    elif output == "kafka":
        sys.stdout.write("".join(f"{printable(described_line(row))}\n" for row in rows))
    else:
        print_rows(rows, output, _LAYOUT, shown=_readable)
    sys.stderr.write(f"quotas v{state.version}, scope {state.scope}, mode {state.mode}\n")
    if not rows:
        _tell_what_applies(state.rows, wanted)
        raise typer.Exit(3)


def _tell_what_applies(rows: "Sequence[Mapping[str, Any]]", wanted: EntityFilter) -> None:
    """Say on stderr which quotas clients of the entity have, although none is set on the entity itself."""
    from pipeline.cli.quotas.kafka_lines import described_line

    who = label(wanted.user, wanted.client_id)
    if not who or DEFAULT in wanted.names.values():
        return
    found = may_apply(rows, wanted.user, wanted.client_id)
    lines = [described_line(row) for row in found[:_SHOWN]]
    more = [f"and {len(found) - _SHOWN} more: {command_text('quotas', 'describe')}"] if len(found) > _SHOWN else []
    told = "these hold in its place, the most specific first:" if found else "and no other quota holds in its place"
    said = [f"{who} has no quota of its own; {told}", *(f"  {line}" for line in (*lines, *more))]
    sys.stderr.write("".join(f"{printable(line)}\n" for line in said))


def _readable(row: "Mapping[str, Any]") -> "Mapping[str, Any]":
    from pipeline.tables.quotas.diff import shown

    return {column: shown(column, value) for column, value in row.items()}
