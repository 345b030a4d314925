"""What an application team sees: one sentence with figures, for every way a client can stand, and nothing of others."""

import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.dashboard.links import PATHS, About, link_key, link_token
from pipeline.dashboard.teams import Held, Use, advice_for, minutes_by_day, minutes_of, standing_of
from pipeline.tables.address import table_uri
from pipeline.tables.reading import read_table
from tests.pipeline.dashboard.lived_tables import HOSTILE, LivedTables, Sender
from tests.pipeline.dashboard.shop import START_MS, quota
from tests.waiting import wait_until

NOW_MS = 1_700_045_184_000
"""2023-11-15 10:46:24 UTC."""
PRODUCE, FETCH, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"


def held(
    observed: float, bound: float | None = 1e5, quota_type: str = PRODUCE, age_ms: int = 20_000, left_ms: int = 36_000
) -> Held:
    return Held(quota_type, observed, bound, NOW_MS - age_ms, NOW_MS + left_ms)


@pytest.mark.parametrize(
    ("uses", "running", "was_seen", "standing", "sentence"),
    [
        ([Use(PRODUCE, 5e5, 1e5)], held(5e5), True, "throttled",
         "You are throttled, not lagging: 5 × your 100 kB/s (produce) since 10:46 UTC, 36 s left"),
        ([], held(1.25e5), True, "throttled",
         "You are throttled, not lagging: 125 % of your 100 kB/s (produce) since 10:46 UTC, 36 s left"),
        ([], held(1.949e5), True, "throttled",
         "You are throttled, not lagging: 194 % of your 100 kB/s (produce) since 10:46 UTC, 36 s left"),
        ([], held(1.95e5), True, "throttled",
         "You are throttled, not lagging: 195 % of your 100 kB/s (produce) since 10:46 UTC, 36 s left"),
        ([], held(75.0, 50.0, REQUEST, left_ms=1), True, "throttled",
         "You are throttled, not lagging: 150 % of your 50 % (request time) since 10:46 UTC, 1 s left"),
        ([], held(9e4, age_ms=86_400_000, left_ms=125_000), True, "throttled",
         "You are throttled, not lagging: what you used above your 100 kB/s (produce) is still owed, "
         "since 2023-11-14 10:46 UTC, 2 min 5 s left"),
        ([], held(9e4, None), True, "throttled",
         "You are throttled, not lagging: what you used is still owed (produce) since 10:46 UTC, 36 s left"),
        ([Use(PRODUCE, 5e5, 1e5)], held(5e5), False, "throttled",
         "You are throttled, not lagging: 5 × your 100 kB/s (produce) since 10:46 UTC, 36 s left"),
        ([Use(PRODUCE, 1e5, 1e5)], held(5e5, left_ms=0), True, "near",
         "You are near your quota: 100 kB/s of 100 kB/s (produce), 100 %"),
        ([Use(PRODUCE, 1.001e5, 1e5)], None, True, "over",
         "You are over your quota, and may be throttled at any time: 100.1 kB/s of 100 kB/s (produce), 100 %"),
        ([Use(PRODUCE, 8e4, 1e5)], None, True, "near",
         "You are near your quota: 80 kB/s of 100 kB/s (produce), 80 %"),
        ([Use(PRODUCE, 79_999.0, 1e5), Use(FETCH, 1.0, 1e6)], None, True, "within",
         "You are within your quota: 80 kB/s of 100 kB/s (produce), 79 %"),
        ([Use(FETCH, 9e4, 5e4, "shadow")], None, True, "shadow",
         "You are not throttled, and would be if your quota were enforced: 90 kB/s of 50 kB/s (fetch), 180 %"),
        ([Use(FETCH, 9e4, 5e4, "shadow"), Use(PRODUCE, 9e4, 1e5)], None, True, "near",
         "You are near your quota: 90 kB/s of 100 kB/s (produce), 90 %"),
        ([Use(FETCH, 4e4, 5e4, "shadow")], None, True, "within",
         "You are within your quota: 40 kB/s of 50 kB/s (fetch), 80 %"),
        ([Use(PRODUCE, 0.0, 1e5)], None, True, "within", "You are within your quota: 0 B/s of 100 kB/s (produce), 0 %"),
        ([], None, True, "no quota", "You are not throttled: no quota holds for you"),
        ([Use(PRODUCE, 0.0, 1e5)], None, False, "never seen", "No usage was seen in the last 7 days"),
    ],
)  # fmt: skip
def test_one_sentence_says_how_a_client_stands(
    uses: list[Use], running: Held | None, was_seen: bool, standing: str, sentence: str
) -> None:
    assert standing_of(uses, running, was_seen, NOW_MS) == (standing, sentence)


def test_the_advice_is_to_slow_down_to_batch_and_to_ask_for_more_with_figures() -> None:
    over = advice_for("throttled", [Use(FETCH, 1.0, 2.0)], held(5.01e5), "alice/etl", 37)
    assert over[0] == "Slow down: stay below 100 kB/s (produce); it was 501 kB/s at the last decision."
    assert over[1].startswith("Batch: larger batches compress better")
    assert over[2] == (
        "Ask for more, with these figures: alice/etl uses 501 kB/s of 100 kB/s (producer_byte_rate), "
        "throttled in 37 minutes of the last 7 days. Enough for it: producer_byte_rate=510kB/s."
    )
    assert [one.partition(":")[0] for one in over] == ["Slow down", "Batch", "Ask for more, with these figures"]


@pytest.mark.parametrize(
    ("standing", "use", "count", "asks"),
    [
        ("over", Use(REQUEST, 75.0, 50.0), 3, True),
        ("near", Use(PRODUCE, 9e4, 1e5), 3, False),
        ("shadow", Use(FETCH, 9e4, 5e4, "shadow"), 3, True),
        ("within", Use(PRODUCE, 1e4, 1e5), 0, False),
        ("no quota", None, 0, False),
        ("never seen", None, 1, False),
    ],
)
def test_advice_is_given_where_there_is_something_to_do(standing: Any, use: Use | None, count: int, asks: bool) -> None:
    found = advice_for(standing, [] if use is None else [use], None, "alice/etl", 0)
    assert len(found) == count
    assert any("Enough for it" in one for one in found) is asks


def test_minutes_are_counted_once_and_by_day_of_utc() -> None:
    today_ms = NOW_MS // 86_400_000 * 86_400_000
    minutes = [today_ms, today_ms, today_ms - 60_000, today_ms - 6 * 86_400_000, today_ms - 7 * 86_400_000]
    found = minutes_by_day(minutes, NOW_MS)
    assert [(day["day"], day["throttled_minutes"]) for day in found] == [
        ("2023-11-09", 1), ("2023-11-10", 0), ("2023-11-11", 0), ("2023-11-12", 0), ("2023-11-13", 0),
        ("2023-11-14", 1), ("2023-11-15", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "minutes"),
    [(0, 60_000, [0]), (59_999, 60_001, [0, 60_000]), (0, 0, []), (-5, 1, [0]), (150_000, 900_000, [120_000, 180_000])],
)
def test_a_span_counts_in_every_minute_that_it_touches(start_ms: int, end_ms: int, minutes: list[int]) -> None:
    assert [*minutes_of([{"start_ms": start_ms, "end_ms": end_ms}], 0, 200_000)] == minutes


# The three paths, over tables that a job has written.

testclient = pytest.importorskip("starlette.testclient", reason="the extra dashboard is not installed")

from tests.pipeline.dashboard.test_api import client_of  # noqa: E402

TOKEN = "0123456789abcdef" * 2
KEY = link_key(TOKEN) or b""


@pytest.fixture(scope="module")
def guarded(shop: LivedTables) -> Iterator[Any]:
    with client_of(shop, TOKEN) as client:
        wait_until(lambda: client.app.state.feed.state is not None, "the first look at the tables")
        yield client


def open_link(client: Any, shop: LivedTables, path: str, user: str, client_id: str | None = None, **more: str) -> Any:
    """What a link shows that works for one more hour."""
    about = About(None, user, client_id)
    token = link_token(KEY, about, shop.now_ms + 3_600_000)
    return client.get(path, params={**about.parameters, "token": token, **more})


def figures_of(client: Any, shop: LivedTables, user: str, client_id: str | None = None) -> Any:
    answer = open_link(client, shop, "/me.json", user, client_id)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_throttled_team_sees_what_the_view_client_shows(guarded: Any, shop: LivedTables) -> None:
    admin = {"Authorization": f"Bearer {TOKEN}"}
    shown = guarded.get("/api/v1/throttles?user=alice", headers=admin).json()["throttles"]
    found = figures_of(guarded, shop, "alice", "etl")
    assert [found["standing"]] == ["throttled" for _ in shown]
    (one,) = found["clients"]
    for name in ("observed", "bound", "since_ms", "quota_type"):
        assert one["throttled"][name] == shown[0][name]
    assert one["throttled"]["until_ms"] == shown[0]["owed_until_ms"]
    assert found["sentence"].startswith("You are throttled, not lagging: ")


def test_the_minutes_are_those_of_the_records(guarded: Any, shop: LivedTables) -> None:
    records = [row for row in read_table(table_uri(shop.root, "throttle_events")).to_pylist() if row["user"] == "alice"]
    first_ms = min(row["throttled_until_ms"] - row["throttle_time_ms"] for row in records)
    found = figures_of(guarded, shop, "alice", "etl")
    assert [day["throttled_minutes"] for day in found["week"][:-1]] == [0] * 6
    assert found["throttled_minutes"] == len(range(first_ms // 60_000 * 60_000, shop.now_ms, 60_000))


@pytest.mark.parametrize(
    ("user", "client_id", "standing"),
    [("alice", "etl", "throttled"), ("ml", "train", "shadow"), ("search", "indexer", "within"), ("web", None, "near"),
     ("guest", HOSTILE, "throttled"), ("search", "gone", "never seen"), ("nobody", None, "never seen")],
)  # fmt: skip
def test_every_client_of_the_shop_stands_as_it_should(
    guarded: Any, shop: LivedTables, user: str, client_id: str | None, standing: str
) -> None:
    assert figures_of(guarded, shop, user, client_id)["standing"] == standing


def test_a_link_for_a_user_shows_all_clients_of_it_and_the_worst_first(guarded: Any, shop: LivedTables) -> None:
    found = figures_of(guarded, shop, "web")
    assert [one["client_id"] for one in found["clients"]] == ["tracker", "tracker-ios"]
    assert found["sentence"].startswith("tracker: You are near your quota: ")
    assert "tracker-ios" in open_link(guarded, shop, "/me", "web").text
    assert "tracker-ios" not in open_link(guarded, shop, "/me", "web", "tracker").text


@pytest.mark.parametrize("path", PATHS)
def test_a_link_for_a_client_does_not_open_the_user(guarded: Any, shop: LivedTables, path: str) -> None:
    token = link_token(KEY, About(None, "alice", "etl"), shop.now_ms + 1)
    for parameters in ({"user": "alice"}, {"user": "web", "client_id": "etl"}, {"user": "alice", "client_id": "x"}):
        assert guarded.get(path, params={**parameters, "token": token}).status_code == 403
    assert guarded.get(path, params={"user": "alice", "client_id": "etl", "token": token}).status_code == 200
    assert guarded.get(path, params={"user": "alice", "client_id": "etl"}).status_code == 401


def test_every_other_path_of_the_dashboard_answers_403_in_a_sentence(guarded: Any, shop: LivedTables) -> None:
    token = link_token(KEY, About(None, "alice", "etl"), shop.now_ms + 1)
    for route in guarded.app.routes:
        path = route.path.replace("{name}", "app.js")
        if path in PATHS:
            continue
        for send in (partial(guarded.get, params={"user": "alice", "client_id": "etl", "token": token}),
                     partial(guarded.get, headers={"Authorization": f"Bearer {token}"}),
                     partial(guarded.post, headers={"Authorization": f"Bearer {token}"})):  # fmt: skip
            answer = send(path)
            assert answer.status_code == 403, path
            assert answer.json()["error"] == "this link opens /me, /me.txt, /me.json and nothing else"


@pytest.mark.parametrize("path", ["/", "/client", "/api/v1/summary"])
def test_a_browser_gets_a_refusal_as_a_sentence_with_a_link(guarded: Any, shop: LivedTables, path: str) -> None:
    token = link_token(KEY, About(None, "alice", "etl"), shop.now_ms + 1)
    answer = guarded.get(path, params={"token": token}, headers={"Accept": "text/html,*/*"})
    assert answer.status_code == 403
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "<h1>This link opens /me, /me.txt, /me.json and nothing else.</h1>" in answer.text
    assert '<a href="/">' in answer.text


def test_an_expired_link_says_so_in_the_form_of_each_path(guarded: Any, shop: LivedTables) -> None:
    token = link_token(KEY, About(None, "alice", "etl"), shop.now_ms)
    answers = [guarded.get(path, params={"user": "alice", "client_id": "etl", "token": token}) for path in PATHS]
    assert [answer.status_code for answer in answers] == [403] * 3
    page, text, document = answers
    assert "<h1>This link ended at 2023-" in page.text
    assert text.text.startswith("this link ended at 2023-")
    assert text.text.count("\n") == 1
    assert set(document.json()) == {"error", "fix"}


@pytest.mark.parametrize("name", ["usr", "cluster", "since"])
def test_an_unknown_parameter_is_answered_in_a_sentence(guarded: Any, shop: LivedTables, name: str) -> None:
    answer = open_link(guarded, shop, "/me", "alice", "etl", **{name: "x"})
    assert answer.status_code == 400
    assert f"Unknown parameter &#x27;{name}&#x27;" in answer.text


def test_the_line_for_a_chat_is_one_line(guarded: Any, shop: LivedTables) -> None:
    answer = open_link(guarded, shop, "/me.txt", "alice", "etl")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text.startswith("alice/etl: You are throttled, not lagging: ")
    assert answer.text.endswith(" minutes of the last 7 days.\n")
    assert answer.text.count("\n") == 1


def test_a_hostile_name_is_text_on_the_page_and_answers_may_not_be_kept(guarded: Any, shop: LivedTables) -> None:
    answer = open_link(guarded, shop, "/me", "guest", HOSTILE)
    assert HOSTILE not in answer.text
    assert "&lt;img src=x onerror=alert(1)&gt;" in answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "<script" not in answer.text
    assert "://" not in answer.text


def test_the_dashboards_own_token_opens_every_teams_page(guarded: Any) -> None:
    answer = guarded.get("/me.json?user=alice", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.json()["standing"] == "throttled"


def test_a_dashboard_without_a_token_answers_on_this_machine_alone(shop: LivedTables) -> None:
    with client_of(shop) as client:
        wait_until(lambda: client.app.state.feed.state is not None, "the first look at the tables")
        assert client.get("/me?user=alice").status_code == 200
        assert client.get("/me?user=alice", headers={"Host": "board.example"}).status_code == 421


MARK = "zq"
"""Is in every name of the tables below, and in no word of an answer."""


def produced(rate: float, _second: float) -> dict[str, float]:
    return {"produced_bytes": rate}


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> tuple[LivedTables, list[tuple[str, str]]]:
    """Forty clients of twelve users under quotas of every level, many over theirs, many sharing a sensor."""
    chance = random.Random(11)
    users = [f"{MARK}u{number:02}" for number in range(12)]
    ids = [f"{MARK}c{number:02}" for number in range(8)]
    clients = sorted({(chance.choice(users), chance.choice(ids)) for _ in range(60)})[:40]
    rows = [("<default>", ""), ("", ids[0]), ("", "<default>"), ("<default>", ids[1]), ("<default>", "<default>")]
    rows += [(user, "") for user in users[:3]] + [(user, "<default>") for user in users[3:5]] + clients[::7]
    quotas = [
        quota(*entity, producer_byte_rate=chance.choice([5e4, 2e5]), owner=f"{MARK}o{place:02}",
              note=f"{MARK}n{place:02}", mode=chance.choice(["enforce", "enforce", "shadow"]))
        for place, entity in enumerate(dict.fromkeys(rows))
    ]  # fmt: skip
    senders = [Sender(*client, partial(produced, chance.choice([1e3, 4e4, 3e5]))) for client in clients]
    tables = LivedTables(Path(tmp_path_factory.mktemp("crowd")), quotas, senders, START_MS, at_once=True)
    tables.live(84, step_ms=3_000)  # so that the roll-up has a minute
    tables.roll_up()
    return tables, clients


def test_no_answer_ever_has_a_name_of_others(crowd: tuple[LivedTables, list[tuple[str, str]]]) -> None:
    tables, clients = crowd
    users = sorted({user for user, _ in clients})
    scopes: list[tuple[str, str | None]] = [*clients, *((user, None) for user in users), (f"{MARK}ghost", None)]
    standings = set()
    with client_of(tables, TOKEN) as client:
        wait_until(lambda: client.app.state.feed.state is not None, "the first look at the tables")
        for user, client_id in scopes:
            own = {user} | {name for of, name in clients if of == user and client_id in {None, name}}
            own |= set() if client_id is None else {client_id}
            for path in PATHS:
                answer = open_link(client, tables, path, user, client_id)
                assert answer.status_code == 200
                text = answer.text
                for name in sorted(own, key=len, reverse=True):
                    text = text.replace(name, "")
                assert MARK not in text, (user, client_id, path)
            standings.add(json.loads(open_link(client, tables, "/me.json", user, client_id).text)["standing"])
    assert standings >= {"throttled", "within", "never seen"}
