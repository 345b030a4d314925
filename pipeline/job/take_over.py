"""Taking over from an earlier driver, the one step of a start that changes what others see, and its checks."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from pipeline.clock import Clock
from pipeline.errors import UsageError
from pipeline.failpoints import failpoint
from pipeline.settings.model import EngineSettings, Settings
from pipeline.settings.places import CatalogRoot
from pipeline.stream.checkpoint import has_scheme
from pipeline.stream.job_tables import DriverEpoch, JobTables
from pipeline.stream.recovery import Recovered, rebuild
from pipeline.tables.quotas.source import QuotaSource
from pipeline.throttle.assembly import Enforcement


def take_over(
    tables: JobTables,
    epoch: DriverEpoch,
    quotas: QuotaSource,
    enforcement: Enforcement,
    clock: Clock,
    engine: EngineSettings,
    max_decision_age_ms: int,
) -> Recovered:
    """Fence earlier drivers in the tables, rebuild the engine, fence them on the topic, publish what they left.

    Returns:
        What was found in the tables.

    Raises:
        Conflict: Another driver has taken over.
    """
    tables.take_over(epoch)
    failpoint("start.epochs_raised")
    recovered = rebuild(tables, quotas, enforcement.decider, clock, engine, max_decision_age_ms)
    enforcement.decider.adopt(quotas.pin())
    failpoint("start.rebuilt")
    enforcement.purgatory.take_over()
    return recovered


# Refuses state on one node's disk where the cluster chooses the driver's node: the next driver would not find it.


def refuse_state_on_one_node(settings: Settings) -> None:
    """Refuse tables or a checkpoint that only the node of this driver has.

    Call it where the driver runs in deploy mode cluster. The lock of `run_dir` may stay on the node: it only keeps a
    second driver of the same node away; one elsewhere is fenced by the tables and by Kafka.

    Raises:
        UsageError: For the first of the two.
    """
    for setting, place in places_on_one_node(settings):
        message = f"'{setting}' {place} is on one node's disk, and the cluster chooses the driver's node"
        fix = (
            "name a store (s3://…, abfss://…), list the folder in 'spark.shared_folders' if every node mounts it, or "
            "submit with --deploy-mode client"
        )
        raise UsageError(message, fix)


def places_on_one_node(settings: Settings) -> Iterator[tuple[str, str]]:
    """Which of the settings name a place on one node's disk, each with that place.

    A place is shared if it is an absolute path, or such a path with the scheme `file`, in one of
    `spark.shared_folders`; or a URI of another scheme.
    """
    shared = [PurePosixPath(folder) for folder in settings.spark.shared_folders]
    for setting, place in _kept(settings):
        if not (_is_in_a_store(place) or any(_path(place).is_relative_to(folder) for folder in shared)):
            yield setting, place


def _kept(settings: Settings) -> Iterator[tuple[str, str]]:
    root = settings.tables.root
    if not isinstance(root, CatalogRoot):
        yield "tables.root", root
    elif root.location is not None:  # otherwise the catalog chooses a place that the cluster reaches
        yield "tables.location", root.location
    yield "stream.checkpoint", settings.stream.checkpoint


def _is_in_a_store(place: str) -> bool:
    return has_scheme(place) and urlsplit(place).scheme != "file"


def _path(place: str) -> PurePosixPath:
    return PurePosixPath(unquote(urlsplit(place).path) if has_scheme(place) else place)
