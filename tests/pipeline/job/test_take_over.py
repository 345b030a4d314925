"""State that only one node has is refused where the cluster chooses the driver's node."""

import pytest

from pipeline.errors import UsageError
from pipeline.job.take_over import places_on_one_node, refuse_state_on_one_node
from pipeline.settings.model import Settings

STORE = "s3a://bucket/checkpoint"


def settings(root: str, checkpoint: str = STORE, *shared: str) -> Settings:
    return Settings.model_validate(
        {"tables": {"root": root}, "stream": {"checkpoint": checkpoint}, "spark": {"shared_folders": shared}}
    )


@pytest.mark.parametrize("root", [".kquota/tables", "/data/tables", "file:///data/tables", "FILE:///data/tables"])
def test_a_path_is_on_one_node(root: str) -> None:
    assert list(places_on_one_node(settings(root))) == [("tables.root", root)]


@pytest.mark.parametrize("root", ["s3://bucket/tables", "abfss://container@account/tables"])
def test_a_store_is_not(root: str) -> None:
    assert list(places_on_one_node(settings(root))) == []


@pytest.mark.parametrize(
    ("place", "is_shared"),
    [
        ("/mnt/kquota", True),
        ("/mnt/kquota/checkpoint", True),
        ("file:///mnt/kquota/checkpoint", True),
        ("file:/mnt/kquota/check%20point", True),
        ("/mnt/kquota2", False),
        ("/mnt", False),
        ("mnt/kquota", False),
    ],
)
def test_a_folder_that_every_node_mounts_is_shared(place: str, is_shared: bool) -> None:
    found = list(places_on_one_node(settings("s3://bucket/tables", place, "/mnt/kquota")))
    assert found == ([] if is_shared else [("stream.checkpoint", place)])


def test_the_refusal_names_setting_place_and_ways_out() -> None:
    with pytest.raises(UsageError) as refusal:
        refuse_state_on_one_node(settings("tables", "checkpoint"))
    assert refusal.value.exit_code == 2
    assert str(refusal.value) == (
        "'tables.root' tables is on one node's disk, and the cluster chooses the driver's node. Fix: name a store "
        "(s3://…, abfss://…), list the folder in 'spark.shared_folders' if every node mounts it, or submit with "
        "--deploy-mode client"
    )
