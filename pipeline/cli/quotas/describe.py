"""`kquota quotas describe`: the quotas, by default in kafka-configs' lines."""

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pipeline.cli.options import ConfigFile, TablesRoot, quota_table
from pipeline.cli.quotas.entity import EntityFilter
from pipeline.cli.quotas.entity_flags import for_entities
from pipeline.cli.table_layout import Layout
from pipeline.errors import printable

if TYPE_CHECKING:
    from pipeline.tables.quotas.table import QuotaTableState

_LAYOUT: Final = Layout(dropped_first=("note", "owner"), texts=("note",))

QuotasOutput = Annotated[str, typer.Option("-o", "--output", help="kafka, table, wide, csv, json or yaml.")]


@for_entities
def describe(
    entity: EntityFilter,
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: QuotasOutput = "kafka",
) -> None:
    """Print the quotas, all of them or those of the entity given; exits with 3 if there are none.

    The filter is kafka-configs': --user alice is alice's own quota, not those of her clients; --entity-type users
    --entity-name alice --entity-type clients are all of these.
    """
    from pipeline.cli.output import refuse_unknown_format

    refuse_unknown_format(output, also=("kafka",))
    print_quotas(quota_table(config, tables).read(), entity, output)


def print_quotas(state: "QuotaTableState", wanted: EntityFilter, output: str) -> None:
    """Print the quotas of one version that are meant, and on stderr the version.

    Raises:
        typer.Exit: With 3, if there are none.
    """
    from pipeline.cli.output import print_rows
    from pipeline.cli.quotas.kafka_lines import described_line

    rows = [row for row in state.rows if wanted.matches(row)]
    if output == "kafka":
        sys.stdout.write("".join(f"{printable(described_line(row))}\n" for row in rows))
    else:
        print_rows(rows, output, _LAYOUT)
    sys.stderr.write(f"quotas v{state.version}, scope {state.scope}, mode {state.mode}\n")
    if not rows:
        raise typer.Exit(3)
