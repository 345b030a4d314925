"""`kquota quotas sync` killed with -9 at random moments under a load that changes, with two real brokers."""

import random
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.cluster.access import ClusterAccess
from pipeline.jvm.jars import fetch
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable, local_audit
from pipeline.tables.reading import read_table
from quota.broker_level import broker_level
from tests.integration.killed_sync import (
    BOUND,
    EDITED_BOUNDS,
    FOREIGN,
    RATE,
    Eye,
    Load,
    UsageRecorder,
    producers_of,
    repeated,
)
from tests.integration.stock_clients import stock_cluster
from tests.pipeline.cli.running import new_tables
from tests.pipeline.sync.sync_process import running_sync
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long]

KILLS = 20
SETTLING_SECONDS = 70
NEAR = 0.1


def test_no_kill_of_the_sync_puts_a_broker_above_the_bound_or_below_its_share(tmp_path: Path) -> None:
    fetch()
    chance = random.Random(18)
    users, stock = [f"user-{number}" for number in range(30)], ["stock-1", "stock-2"]
    edited = [f"edited-{number}" for number in range(10)]
    quotas = QuotaTable(new_tables(tmp_path / "tables"))
    bounds = dict.fromkeys([*users, *stock, *edited, "taken-before"], BOUND)

    def edit(changed: dict[str, float]) -> None:
        bounds.update(changed)
        quotas.alter([QuotaChange(user, "", {RATE: rate}) for user, rate in changed.items()], local_audit("test"))

    edit(bounds)
    root = str(tmp_path / "tables")
    with ExitStack() as stack:
        cluster = stack.enter_context(stock_cluster(tmp_path, 2, stock))
        flags = ("--bootstrap-server", cluster.bootstrap_servers, "--tables", root)
        native = stack.enter_context(NativeQuotas(ClusterAccess(cluster.bootstrap_servers)))
        native.alter({NativeEntity.of_row(user, ""): {RATE: value} for user, value in FOREIGN.items()})
        eye = Eye(cluster)
        stack.callback(eye.close)
        producers = stack.enter_context(producers_of(cluster, stock, load=5))
        load = Load(UsageRecorder(root), eye, users, producers, chance)
        stack.enter_context(repeated(eye.look, 0.05))
        stack.enter_context(repeated(load.step, 0.2))
        for _ in range(KILLS):
            with running_sync(*flags) as sync:
                for _ in range(chance.randrange(1, 20)):
                    edit({user: chance.choice(EDITED_BOUNDS) for user in chance.sample(edited, 3)})
                    time.sleep(chance.uniform(0.0, 1.0))
                sync.kill()
        load.settle()
        with running_sync(*flags) as sync:
            sync.wait_for("values that are kquota's")
            time.sleep(SETTLING_SECONDS)
            assert sync.stop() == 0
        expect_levels(load, eye)
        with running_sync(*flags, "--restore") as sync:
            sync.wait_for("values that are kquota's")
            assert sync.stop() == 0
        mirrored = {**bounds, **FOREIGN}
        wait_until(lambda: eye.held == mirrored, "every level to be back at its bound")
    expect_only_levels(eye, {**dict.fromkeys([*users, *stock], BOUND), **dict.fromkeys(edited, min(EDITED_BOUNDS))})
    changes = read_table(f"{root}/broker_quotas", ["result", "cause"]).to_pylist()
    made = Counter(row["cause"] for row in changes if row["result"] == "applied")
    assert min(made[cause] for cause in ("added", "edited", "together_above", "restored")) > 0, made


def expect_only_levels(eye: Eye, lowest_bounds: Mapping[str, float]) -> None:
    """Nothing else was ever seen on a broker: once there, a value stays, between the share and the bound."""
    wrong = {
        (broker, user, value)
        for broker, user, value in eye.seen
        if (
            value != FOREIGN[user]
            if user in FOREIGN
            else value is None or not lowest_bounds[user] / 2 <= value <= BOUND
        )
    }
    assert wrong == set()
    assert {(broker, user) for broker, user, _ in eye.seen} == {
        (broker, user) for broker in (1, 2) for user in (*lowest_bounds, *FOREIGN)
    }


def expect_levels(load: Load, eye: Eye) -> None:
    """With the levels that are there the brokers give what they would with levels that are computed afresh."""
    held = dict(eye.held)
    for user, wants in load.wants.items():
        demand = np.array(wants)
        fresh = broker_level(demand, np.zeros(2, np.bool_), BOUND)
        given, due = np.minimum(demand, held[user]).sum(), np.minimum(demand, fresh).sum()
        assert given == pytest.approx(due, abs=NEAR * BOUND), (user, wants, held[user], fresh)
