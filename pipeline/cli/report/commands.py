"""`kquota report`: its commands."""

import typer

from pipeline.cli.report.chargeback import chargeback
from pipeline.cli.report.rightsizing import rightsizing
from pipeline.cli.report.slo import slo

app = typer.Typer(help="Who used how much, who was throttled how long, and which bounds fit.", no_args_is_help=True)
app.command("chargeback")(chargeback)
app.command("slo")(slo)
app.command("rightsizing")(rightsizing)
