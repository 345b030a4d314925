"""The names of what belongs to one shard: its job and its folders, made of those that all shards are given."""

import re
from typing import Final

from quota.shares import Share, share_of

_FOLDER: Final = re.compile(r"(.+)/shard-(\d+)-of-(\d+)/*", re.DOTALL)


def folder_of(place: str, share: Share) -> str:
    """The folder of a shard under a place. A place that is this folder already stays as it is."""
    return place if shard_at(place) == share else f"{place.rstrip('/')}/shard-{share.number}-of-{share.of}"


def shard_at(place: str) -> Share | None:
    """The shard whose folder a place is; None if it is none's."""
    found = _FOLDER.fullmatch(place)
    try:
        return None if found is None else share_of(f"{found[2]}/{found[3]}")
    except ValueError:
        return None


def above_shard(place: str) -> str:
    """The place that all shards share; a place that is no shard's folder is its own."""
    found = _FOLDER.fullmatch(place)
    return place if found is None or shard_at(place) is None else found[1]


def job_of(job: str, share: Share) -> str:
    """The name of a shard's job. A name that is this one already stays as it is."""
    return f"{job.removesuffix(_suffix(share))}{_suffix(share)}"


def other_jobs(job: str, share: Share) -> tuple[str, ...]:
    """The names of the jobs of all other shards, given the name of this one's."""
    base = job.removesuffix(_suffix(share))
    return tuple(job_of(base, Share(number, share.of)) for number in range(share.of) if number != share.number)


def _suffix(share: Share) -> str:
    return f"-{share.number}of{share.of}"
