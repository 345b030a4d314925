"""`kquota config`: the settings in force, where each comes from, and their schema."""

import json
import sys
from typing import Annotated, Any

import typer

from pipeline.cli.options import ConfigFile, Output

app = typer.Typer(help="Show the settings in force, or their schema.", no_args_is_help=True)


@app.command("show")
def show(config: ConfigFile = None, output: Output = "table") -> None:
    """Print every setting with its value and where it comes from; secrets are masked."""
    from pipeline.cli.output import print_rows
    from pipeline.cli.table_layout import Layout
    from pipeline.settings.loading import load_settings, origins

    settings = load_settings(config)
    where = origins(config)
    rows = [
        {"key": key, "value": value, "from": where.get(key, "default")}
        for key, value in _flat(settings.model_dump(mode="json"))
    ]
    print_rows(rows, output, Layout(texts=("value",), names=frozenset({"from"})))


@app.command("schema")
def schema(indent: Annotated[int, typer.Option(help="Spaces per level of indentation.", min=0, max=8)] = 2) -> None:
    """Print the JSON Schema of the settings file."""
    from pipeline.settings.model import Settings

    sys.stdout.write(json.dumps(Settings.model_json_schema(), indent=indent) + "\n")


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, dict) and value:
            pairs += _flat(value, f"{prefix}{key}.")
        else:
            pairs.append((prefix + key, value))
    return pairs
