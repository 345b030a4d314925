"""Refuses state on one node's disk where the cluster chooses the driver's node: the next driver would not find it."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from pipeline.settings.catalog import CatalogRoot
from pipeline.settings.model import Settings
from pipeline.stream.checkpoint_files import has_scheme
from pipeline.stream.errors import StateOnOneNode


def refuse_state_on_one_node(settings: Settings) -> None:
    """Refuse tables or a checkpoint that only the node of this driver has.

    Call it where the driver runs in deploy mode cluster. The lock of `run_dir` may stay on the node: it only keeps a
    second driver of the same node away; one elsewhere is fenced by the tables and by Kafka.

    Raises:
        StateOnOneNode: For the first of the two.
    """
    for setting, place in places_on_one_node(settings):
        raise StateOnOneNode(setting, place)


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
