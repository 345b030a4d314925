"""What a meter writes beside its offset."""

from pipeline.meter.log_follower import HEAD_BYTES, PASSED_FILES, LogPlace
from pipeline.meter.usage_topic import mark_of, place_of

LARGEST_METADATA_BYTES = 4_096
"""Kafka's default of `offset.metadata.max.bytes`."""


def test_the_place_that_was_written_is_read() -> None:
    place = LogPlace(
        inode=7, offset_bytes=9, head_bytes=8, head_sha256="0a", passed_until_ns=5, passed=[("0b", 6), ("0c", 7)]
    )
    assert place_of(mark_of(3, "m", place), "g", "t", "b:1") == place


def test_the_longest_mark_is_well_below_what_a_broker_takes() -> None:
    place = LogPlace(
        inode=2**64,
        offset_bytes=2**63,
        head_bytes=HEAD_BYTES,
        head_sha256="f" * 64,
        passed_until_ns=2**63,
        passed=[("f" * 16, 2**63)] * PASSED_FILES,
    )
    assert len(mark_of(2**62, "m" * 64, place).text) < LARGEST_METADATA_BYTES / 3
