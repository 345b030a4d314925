"""The settings of the driver's JVM: its memory, options, jars and class archive."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pipeline.jvm.class_archive import class_archive, options_to_use
from pipeline.jvm.jars import pyspark_jars_folder
from pipeline.settings.model import SparkSettings

# The JVM refuses two choices of a garbage collector, so an operator's choice replaces ours. Ours needs none of G1's
# concurrent threads and barriers: a micro-batch leaves only short-lived garbage.
_CHOICE_OF_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
_OPTIONS: Final = "spark.driver.extraJavaOptions"
_CLASS_PATH: Final = "spark.driver.extraClassPath"
_JARS: Final = "spark.jars"
MERGED: Final = (_OPTIONS, _CLASS_PATH, _JARS)
"""Settings in which the operator's own value is added to ours."""


def jvm_settings(
    spark: SparkSettings, jars: Sequence[Path], *, starts_local: bool, scratch: Path | None
) -> dict[str, str]:
    """The settings of the driver's JVM, the operator's own included.

    Args:
        spark: The settings' branch.
        jars: Local files; may be empty.
        starts_local: Whether the session starts a JVM in which everything runs. Then the jars are on its class path,
            and need not be copied to executors; classes of other places can not be in the class archive.
        scratch: Where the JVM keeps temporary files; None leaves that to it.
    """
    conf = spark.plain_conf()
    memory = conf.get("spark.driver.memory", spark.driver_memory)
    settings = {"spark.driver.memory": memory}
    places = {_CLASS_PATH if starts_local else _JARS: [str(jar) for jar in jars]}
    for key, separator in ((_CLASS_PATH, os.pathsep), (_JARS, ",")):
        if found := [*places.get(key, ()), *([conf[key]] if conf.get(key) else ())]:
            settings[key] = separator.join(found)
    # The whole heap is taken at the start: it fills up anyway, and a lack of memory then shows at once.
    # -Xss4m: when a batch is interrupted, Spark matches a regular expression against the Python traceback. That
    # overflows the default thread stack and kills the stream's thread.
    options = [
        f"-Xms{memory}",
        "-XX:+AlwaysPreTouch",
        "-Xss4m",
        f'"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"',
    ]
    if scratch is not None:
        options.append(f'"-Djava.io.tmpdir={scratch}"')
    own = conf.get(_OPTIONS, "")
    if not _CHOICE_OF_COLLECTOR.search(own):
        options.append("-XX:+UseParallelGC")
    if starts_local:  # an archive is made for this class path alone
        options += _class_archive_options(jars)
    settings[_OPTIONS] = " ".join([*options, *([own] if own else ())])
    return settings


def archived_jars(jars: Sequence[Path]) -> list[Path]:
    """What a class archive of Spark is for: its class path in order. Empty without pyspark.

    Args:
        jars: As given to `jvm_settings`.
    """
    own = pyspark_jars_folder()
    return [] if own is None else [*jars, own]


def _class_archive_options(jars: Sequence[Path]) -> list[str]:
    """JVM options to use the machine's class archive, if there is one for this Java and these jars."""
    found = archived_jars(jars)
    if not found or not os.environ.get("JAVA_HOME"):
        return []
    archive = class_archive("spark", Path(os.environ["JAVA_HOME"]), found)
    return options_to_use(archive) if archive.exists() else []
