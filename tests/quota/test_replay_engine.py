"""The engine by columns gives what the engine gives by names."""

from random import Random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from quota.entity import QUOTA_TYPES
from quota.replay import NumberedUsage, ReplayEngine
from quota.snapshot import QuotaSnapshot
from quota.usage import Usage
from tests.quota.factories import decide, loaded, quota_row, table, usage_row

AT_MS = 1_700_000_040_000
ALL_TYPES: dict[str, Any] = {"producer_byte_rate": 1, "consumer_byte_rate": 1, "request_percentage": 0.001}


class Numbers:
    """Numbers clients in the order they are met."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, str], int] = {}

    def usage(self, rows: list[dict[str, Any]], at_ms: int) -> NumberedUsage:
        clients = [self.of.setdefault((row["user"], row["client_id"]), len(self.of)) for row in rows]
        usage = Usage.read(table(rows), False, 1_000, at_ms)
        return NumberedUsage(usage.names, usage.window, usage.last_ms, usage.measures, np.array(clients, np.int64))


def engine(*quotas: dict[str, Any], **settings: Any) -> ReplayEngine:
    made = ReplayEngine(**settings)
    made.load_quotas(QuotaSnapshot.from_rows(quotas, 1))
    return made


def test_throttles_are_the_applied_rows_of_a_record_and_leave_the_same_behind() -> None:
    quotas = quota_row("<default>", "", **ALL_TYPES), quota_row("<default>", "<default>", mode="shadow", **ALL_TYPES)
    one, other, numbers = loaded(*quotas), engine(*quotas), Numbers()
    for at_ms in (AT_MS, AT_MS + 500):
        rows = [usage_row(at_ms, user=user, produced_bytes=10**4, network_time_ns=10**9) for user in "bab"]
        applied = [row for row in decide(one, at_ms, *rows) if row["applied"]]
        found = other.throttles(numbers.usage(rows, at_ms), at_ms)
        figures = (found.quota_type, found.bound, found.level, found.throttle_time_ms)
        users = [rows[row]["user"] for row in found.rows]
        held = sorted(zip(users, *(column.tolist() for column in figures), strict=True))
        assert held == [
            (row["user"], QUOTA_TYPES.index(row["quota_type"]), row["bound"], row["level"], row["throttle_time_ms"])
            for row in applied
        ]
        assert len(held) == 2
    assert len(other.throttles(numbers.usage([], AT_MS + 600), AT_MS + 600).rows) == 0


def test_clients_that_came_without_a_quota_owe_nothing_then_and_later_what_is_due() -> None:
    made, numbers = engine(quota_row("alice", "", mode="exempt")), Numbers()
    rows = [usage_row(AT_MS, user=user, produced_bytes=10**6) for user in USERS]
    made.throttles(numbers.usage(rows, AT_MS), AT_MS)
    clients, at_ms = np.arange(len(USERS)), np.full(len(USERS), AT_MS)
    free = made.owed_at(clients, at_ms)
    assert np.isinf(free.bound).all()
    assert not free.owed_ms.any()

    made.load_quotas(QuotaSnapshot.from_rows([quota_row("<default>", "", producer_byte_rate=1)], 2))
    made.resolve_again(clients, table(rows), AT_MS)
    made.throttles(numbers.usage(rows, AT_MS), AT_MS)
    held = made.owed_at(clients, at_ms)
    assert (held.bound[0] == 1).all()
    assert (held.owed_ms[0] > 0).all()


USERS, CLIENT_IDS = ("alice", "bob", "carol"), ("a", "")


def some_quotas(draw: Random) -> list[dict[str, Any]]:
    """Enough levels for several tags, one shadow row and one exempt row among them."""
    bounds = {
        "producer_byte_rate": draw.choice((None, 500.0, 4_000.0)),
        "consumer_byte_rate": draw.choice((None, 900.0)),
        "request_percentage": draw.choice((None, 0.001)),
    }
    rows = [
        quota_row("<default>", "", producer_byte_rate=1_000.0, consumer_byte_rate=2_000.0),
        quota_row(
            "alice", "a", mode=draw.choice(("enforce", "shadow")), producer_byte_rate=300.0, request_percentage=1
        ),
        quota_row("", "a", consumer_byte_rate=700.0),
        quota_row("carol", "", mode="exempt"),
    ]
    if any(bounds.values()):
        rows.append(quota_row("bob", "", **bounds))
    return [row for row in rows if draw.random() < 0.8] or rows[:1]


@settings(max_examples=30)
@given(seed=st.integers(0, 10**9), carry_debt=st.booleans())
def test_what_clients_owe_is_what_evaluate_says_of_them(seed: int, carry_debt: bool) -> None:
    draw = Random(seed)
    made, numbers = ReplayEngine(num_samples=3, carry_debt=carry_debt), Numbers()
    at_ms = AT_MS
    for version in range(1, 4):
        made.load_quotas(QuotaSnapshot.from_rows(some_quotas(draw), version))
        held = [usage_row(at_ms, user=user, client_id=client_id) for user, client_id in numbers.of]
        made.resolve_again(np.arange(len(held)), table(held), at_ms)
        for _ in range(draw.randrange(1, 6)):
            at_ms += draw.choice((0, 300, 1_000, 2_700))
            rows = [
                usage_row(
                    at_ms - draw.choice((0, 0, 900, 9_000)),
                    user=user,
                    client_id=client_id,
                    produced_bytes=draw.choice((None, 0, 3_000, 90_000)),
                    fetched_bytes=draw.choice((None, 5_000)),
                    io_time_ns=draw.choice((None, 10**8)),
                )
                for user in USERS
                for client_id in CLIENT_IDS
                if draw.random() < 0.6
            ]
            made.throttles(numbers.usage(rows, at_ms), at_ms)
        if not numbers.of:
            continue
        names = list(numbers.of)
        instants = np.array([at_ms + draw.choice((0, 1, 999, 1_500, 40_000)) for _ in names])
        found = made.owed_at(np.arange(len(names)), instants)
        levels = made.resolve(table([usage_row(at_ms, user=user, client_id=client_id) for user, client_id in names]))
        for place, ((user, client_id), instant_ms) in enumerate(zip(names, instants.tolist(), strict=True)):
            client = table([usage_row(at_ms, user=user, client_id=client_id)])
            wanted = made.evaluate(client, instant_ms).to_pylist()
            own_levels = levels.to_pylist()[3 * place : 3 * place + 3]
            for quota_type, (row, standing) in enumerate(zip(wanted, own_levels, strict=True)):
                bound = found.bound[quota_type, place]
                assert (None if np.isinf(bound) else bound) == row["bound"]
                assert found.owed_ms[quota_type, place] == row["owed_ms"]
                if row["bound"] is not None:
                    assert found.window_ms[quota_type, place] == row["window_ms"]
                    assert found.level[quota_type, place] == standing["level"]
