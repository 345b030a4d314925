"""What all tests share: one Hypothesis profile, warnings as errors, no thread left, the real broker, the session."""

import gc
import os
import signal
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings

from pipeline.jvm.jars import fetch
from pipeline.jvm.java import find_java
from tests.left_threads import pytest_runtest_setup, pytest_runtest_teardown

__all__ = ["pytest_runtest_setup", "pytest_runtest_teardown"]  # hooks, found by their names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.demo.broker import EmbeddedBroker
    from tests.object_store import ObjectStore

# The one profile of all tests. No example is too slow (speed is measured by bench/) and none too large (each strategy
# bounds what it draws). The same code gets the same examples, so that what passed passes again; `EXPLORE_EXAMPLES=1`
# looks for new ones. A failure prints how to repeat it elsewhere.
settings.register_profile(
    "kquota",
    settings.get_profile("default"),  # named, because Hypothesis takes another one where it sees continuous integration
    deadline=None,
    derandomize="EXPLORE_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    print_blob=True,
)
settings.load_profile("kquota")
# For who only asks whether a test fails (tests/mutations): the same examples, and the first failure is enough.
settings.register_profile(
    "first-failure", settings.get_profile("kquota"), phases=(Phase.explicit, Phase.reuse, Phase.generate)
)

USERS = {"alice": "alice-secret", "bob": "bob-secret", "carol": "carol-secret"}


def pytest_configure(config: pytest.Config) -> None:
    """Warnings are errors, but not those inside kafka-python.

    It leaves to the garbage collector the sockets of handshakes that failed,
    and of connections that were being made when a broker died.
    """
    for kafka_python in (
        r"ignore:Exception ignored in. <(socket.socket|ssl.SSLSocket) (\[closed\] )?fd=\d+, family=\d+,"
        r":pytest.PytestUnraisableExceptionWarning",
    ):
        config.addinivalue_line("filterwarnings", kafka_python)
    os.environ.pop("COLUMNS", None)  # tables are as wide as the reader's terminal, which a test has none of
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell starts programs in the background so, and every program that a test starts and ends would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole programs run last: by then, the tests that run beside this process are often done.

    A file names the markers of its tests: deploy/test.sh looks for them there.
    """
    items.sort(key=lambda item: "integration" in item.path.parts)
    marked = {(name, item.path) for item in items for name in ("spark", "broker") if item.get_closest_marker(name)}
    for name, path in marked:
        if f"mark.{name}" not in path.read_text(encoding="utf-8"):
            message = f"{path} does not name the marker {name} of its tests"
            raise pytest.UsageError(message)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What the modules of all tests hold stays until the end: no collection of garbage looks at it, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_sessionfinish() -> None:
    """Collects such sockets now: what is found after this hook is judged without the filters above."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator["EmbeddedBroker"]:
    """A running broker with `USERS` on its SASL listener. Make topics of your own in it."""
    from pipeline.demo.broker import EmbeddedBroker  # noqa: PLC0415 - imports the Kafka client

    fetch()
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), USERS) as running:
        yield running


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator["ObjectStore"]:
    """A running store that speaks S3. Take an address of your own in it. Skips where no such server is installed."""
    from tests.object_store import object_store  # noqa: PLC0415 - as above

    with object_store(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture(scope="session")
def made_reporter() -> Path:
    """The reporter's jar, made of the sources as they are."""
    from deploy.reporter.__main__ import make  # noqa: PLC0415 - as above
    from pipeline.meter.reporter import REPORTER_JAR  # noqa: PLC0415

    make(REPORTER_JAR)
    return REPORTER_JAR


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """The one Spark session of the run: local, UTC, with the Kafka source and Delta."""
    with spark_session() as session:
        yield session


@contextmanager
def spark_session() -> Iterator["SparkSession"]:
    """Such a session, ended with the block."""
    from pipeline.jvm.jars import spark_jars  # noqa: PLC0415 - as above, for pyspark
    from pipeline.settings.model import SparkSettings  # noqa: PLC0415
    from pipeline.stream.session import DELTA_CONF, build_spark_session  # noqa: PLC0415

    fetch()
    os.environ["JAVA_HOME"] = str(find_java().home)  # pyspark's launcher looks nowhere else but PATH
    session = build_spark_session(SparkSettings(conf=DELTA_CONF), spark_jars(), checkpoint_is_local=True)
    try:
        yield session
    finally:
        session.stop()
