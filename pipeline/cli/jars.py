"""`kquota jars`: fetch, check and list the locked jars."""

from typing import Annotated, Final, Literal

import typer

from pipeline.cli.options import Output
from pipeline.cli.output import print_rows
from pipeline.cli.table_layout import Layout

app = typer.Typer(help="Fetch and check the locked jars of Spark and of the embedded broker.", no_args_is_help=True)

WithSet = Annotated[
    Literal["s3"] | None,
    typer.Option("--with", help="An optional set too: s3, for Spark's own access to s3://.", show_default=False),
]
_LAYOUT: Final = Layout(("set", "jar", "size_bytes"), names=frozenset({"jar", "path"}))


@app.command("fetch")
def fetch_jars(with_set: WithSet = None) -> None:
    """Fetch every locked jar that is missing or altered. Prints one summary line. Can be repeated.

    Sources, in order: the cache, the local Maven repository, mvn, the Ivy inside pyspark. Exit code 6: none has it.
    """
    from pipeline.jvm import jars

    report = jars.fetch(lambda line: typer.echo(line, err=True), *([with_set] if with_set else ()))
    typer.echo(f"{len(report.fetched)} fetched, {len(report.cached)} from cache")


@app.command("verify")
def verify_jars(with_set: WithSet = None) -> None:
    """Compare every locked jar's size and sha256 with the lock. Exit code 1 when one is missing or altered."""
    from pipeline.jvm.jar_lock import jars_of
    from pipeline.jvm.jars import JarStore

    store = JarStore(jars_of(*([with_set] if with_set else ())))
    problems = store.verify()
    for problem in problems:
        typer.echo(str(problem), err=True)
    typer.echo(f"{len(store.locked) - len(problems)} of {len(store.locked)} jars are as locked")
    if problems:
        raise typer.Exit(1)


@app.command("list")
def list_jars(output: Output = "table") -> None:
    """List the lock: set, coordinates, size, hash, and where each jar belongs on this machine."""
    from pipeline.jvm.jar_lock import read_lock
    from pipeline.jvm.jars import JarStore

    store = JarStore(read_lock())
    rows = [
        {
            "set": jar.jar_set,
            "jar": jar.coordinates,
            "size_bytes": jar.size_bytes,
            "sha256": jar.sha256,
            "path": store.path_of(jar),
        }
        for jar in store.locked
    ]
    print_rows(rows, output, _LAYOUT)


@app.command("paths")
def jar_paths() -> None:
    """Print the paths of Spark's connectors in one line with commas, as `spark-submit --jars` takes them.

    Each is compared with the lock first. Exit code 1 when one is missing or altered.
    """
    from pipeline.jvm.jars import spark_jars

    typer.echo(",".join(str(jar) for jar in spark_jars()))
