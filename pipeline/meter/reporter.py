"""The reporter: a jar that reports usage from inside a broker. Where it is, and what a broker must be given."""

import shutil
from pathlib import Path
from typing import Final

from pipeline.errors import PipelineError

REPORTER_JAR: Final = Path(__file__).with_name("kquota-reporter.jar")
"""A wheel carries it; in a checkout `make ready` makes it."""
OTHERS: Final = "<others>"
"""The client-id of the sum that clients of one user share, where the user has too many for sums of their own."""
_CLASS: Final = "io.kquota.reporter.UsageReporter"
_JMX: Final = "org.apache.kafka.common.metrics.JmxReporter"
REPORTER_PREFIX: Final = "kquota.reporter."
"""The beginning of its settings in server.properties."""


def reporter_jar() -> Path:
    """Where the jar is; `PipelineError` if it was not made in this checkout."""
    if not REPORTER_JAR.is_file():
        message = f"the reporter's jar is not in {REPORTER_JAR.parent}: a checkout has only its sources"
        raise PipelineError(message, "make ready")
    return REPORTER_JAR


def write_reporter(path: Path) -> Path:
    """Copy the jar; returns where it is now.

    * `path`: Of the file, or of a folder that exists.

    Raises:
        PipelineError: it was not made in this checkout, or cannot be written.
    """
    jar = reporter_jar()
    target = path / jar.name if path.is_dir() else path
    try:
        shutil.copyfile(jar, target)
    except OSError as error:
        message = f"the reporter's jar cannot be written to {target}: {error.strerror}"
        raise PipelineError(message, "name a file in a folder that exists and that you may write to") from error
    return target


def reporter_settings(bootstrap_servers: str, topic: str) -> dict[str, str]:
    """The settings of a broker with the reporter.

    Setting `metric.reporters` replaces its default, so Kafka's own reporter, which makes the JMX beans, is named too.

    * `bootstrap_servers`: where the reporter finds the usage topic, `host:port,…`.
    """
    own = {"topic": topic, "bootstrap.servers": bootstrap_servers}
    prefixed = {f"{REPORTER_PREFIX}{name}": value for name, value in own.items()}
    return {"metric.reporters": f"{_JMX},{_CLASS}", **prefixed}
