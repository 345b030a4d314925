"""A stock client on two brokers, split 90/10 and then 10/90: what the levels of a cluster make of it, and a mirror."""

from pathlib import Path

import pytest

from bench.split_client import measure

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

NEAR = 0.15
HIGHEST = 1.5
MIRRORED = 1.7


def test_two_brokers_stay_near_the_bound_where_mirrored_quotas_give_nearly_twice(tmp_path: Path) -> None:
    mirror, cluster = measure(tmp_path, [10.0], seconds=200)
    assert (mirror.scope, cluster.scope) == ("broker", "cluster")
    assert [mean for mean in cluster.settled_means if abs(mean - 1) > NEAR] == []
    assert max(cluster.all_means) < HIGHEST
    assert min(mirror.settled_means) > MIRRORED
