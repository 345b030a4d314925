"""The API over real tables: its numbers are those of the tables, and names are never anything but data."""

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.clock import wall_ms
from pipeline.command_line import TABLES_ROOT, carry
from pipeline.dashboard.reader import Feed, TablesReader
from pipeline.dashboard.views import PARAMETERS, Answers, build_app
from pipeline.job.status import JobSigns
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.port import table_uri
from pipeline.tables.queries import read_table
from pipeline.tables.quotas.table import QuotaTable
from tests.pipeline.cli.running import kquota
from tests.pipeline.dashboard.shop import QUOTAS, SENDERS, LivedTables, quota
from tests.waiting import wait_until

# Its import warns that another library will take its place.
testclient = pytest.importorskip("starlette.testclient")

Client = testclient.TestClient


@pytest.fixture(scope="module")
def asked(shop: LivedTables) -> Iterator[Any]:
    with client_of(shop) as client:
        yield client


def client_of(shop: LivedTables, token: str | None = None) -> Any:
    """A browser on this machine, at the instant at which the shop's time stands still."""
    settings = Settings(tables=TablesSettings(root=shop.root))
    reader = TablesReader(settings, JobSigns(lambda: "7", lambda: None))
    feed = Feed(reader, lambda: shop.now_ms)
    app = build_app(Answers(reader, feed, settings), token)
    client = Client(app, base_url="http://127.0.0.1:8788")
    client.app.state.feed = feed
    return client


def get(client: Any, path: str, **parameters: Any) -> Any:
    wait_until(lambda: client.app.state.feed.state is not None, "the first look at the tables")
    answer = client.get(f"/api/v1/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


OWNERS = {"alice": "data-platform", "guest": "platform"}


def test_a_throttle_has_its_level_its_owner_and_its_begin(asked: Any, shop: LivedTables) -> None:
    decisions = read_table(table_uri(shop.root, "decisions")).to_pylist()
    found = get(asked, "summary")
    assert {row["user"]: row["owner"] for row in found["throttled"]} == OWNERS
    for row in found["throttled"]:
        of_it = [one for one in decisions if one["decision_id"] == row["decision_id"]]
        assert [one["level"] for one in of_it] == [row["level"]]
        assert row["since_ms"] <= row["throttled_until_ms"] <= row["owed_until_ms"]
    assert {(row["user"], row["owner"]) for row in found["recent"]} == set(OWNERS.items())


def test_the_rates_are_those_of_the_usage(asked: Any, shop: LivedTables) -> None:
    rows = {(row["user"], row["client_id"]): row for row in get(asked, "quotas")["rows"]}
    web = rows["web", ""]["bounds"]["producer_byte_rate"]
    usage = read_table(table_uri(shop.root, "usage")).to_pylist()
    newest_ms = max(row["evaluated_at_ms"] for row in usage)
    begin_ms = (newest_ms // 1_000 - 10) * 1_000
    used = sum(row["produced_bytes"] or 0 for row in usage
               if row["user"] == "web" and begin_ms <= row["sample_start_ms"] <= newest_ms)  # fmt: skip
    assert web["observed"] == pytest.approx(used / ((newest_ms - begin_ms) / 1_000))
    assert web["used"] == web["observed"] / 400_000


def test_shadow_quotas_are_shown_as_such_and_throttle_nobody(asked: Any) -> None:
    talkers = get(asked, "summary")["talkers"]
    shadow = [row for row in talkers if row["mode"] == "shadow"]
    assert [(row["user"], row["throttled"], row["used"] > 1) for row in shadow] == [("ml", False, True)]
    assert get(asked, "summary")["totals"]["over_shadow_bound"] == 1
    (web,) = [row for row in talkers if row["sensor_user"] == "web"]
    assert (web["clients"], web["sensor_client_id"]) == (2, ""), "clients that share a sensor are one row"


def test_the_totals_are_over_the_windows_of_the_rates(asked: Any, shop: LivedTables) -> None:
    usage = read_table(table_uri(shop.root, "usage")).to_pylist()
    at_ms = max(row["evaluated_at_ms"] for row in usage)
    in_windows = [row for row in usage if row["sample_start_ms"] > at_ms - 11_000]
    seconds = (at_ms - min(row["sample_start_ms"] for row in in_windows)) / 1_000
    totals = get(asked, "summary")["totals"]
    for name in ("produced_bytes", "fetched_bytes"):
        assert totals[f"{name}_per_second"] == sum(row[name] or 0 for row in in_windows) / seconds
    assert totals["active_clients"] == 6


def test_a_client_has_its_rate_its_bound_its_bands_and_its_decisions(asked: Any, shop: LivedTables) -> None:
    found = get(asked, "client", user="alice", client_id="etl")
    decisions = [row for row in read_table(table_uri(shop.root, "decisions")).to_pylist() if row["user"] == "alice"]
    decisions.sort(key=lambda row: row["batch_id"])
    assert [row["decision_id"] for row in found["decisions"]] == [row["decision_id"] for row in decisions]
    assert found["bands"]
    assert len(found["records"]) > len(found["bands"])
    assert len(found["at_ms"]) == len(found["series"]["producer_byte_rate"]["observed"])
    assert any(row["matches"] == ["producer_byte_rate"] and row["level"] == 1 for row in found["levels"])
    assert found["effective"][0]["bound"] == 150_000


def test_the_history_says_who_when_and_why(asked: Any) -> None:
    newest, *_, made = get(asked, "quotas/history")["versions"]
    assert (newest["by"], newest["reason"]) == ("ada at console", "month end")
    assert {(change["column"], change["old"], change["new"]) for change in newest["changes"]} >= {
        ("producer_byte_rate", 100_000.0, 150_000.0)
    }
    assert made["by"].startswith("kquota, for the table itself ("), "not of another tool"


def test_clients_are_listed_and_found_by_a_part_of_their_name(asked: Any) -> None:
    every = get(asked, "clients")["clients"]
    assert {row["user"] for row in every[:2]} == {"alice", "guest"}  # the throttled ones come first
    assert len(every) == 6
    for search in ("Tracker", "web / track", "web/track"):
        assert [row["client_id"] for row in get(asked, "clients", search=search)["clients"]] == [
            "tracker",
            "tracker-ios",
        ]
    assert get(asked, "clients", search="alice")["clients"][0]["used"] > 1


def test_a_client_that_was_never_seen_is_stated_with_those_it_may_be(asked: Any) -> None:
    known = get(asked, "client", user="alice", client_id="etl")
    assert (known["seen_ms"] is not None, known["alike"]) == (True, [])
    unknown = get(asked, "client", user="webb", client_id="tracker-io")
    assert unknown["seen_ms"] is None
    assert [one["client_id"] for one in unknown["alike"]] == ["tracker-ios", "tracker"]


def test_the_client_view_has_charts_of_what_is_used_or_bounded(asked: Any) -> None:
    assert get(asked, "client", user="alice", client_id="etl")["charts"] == ["producer_byte_rate"]
    assert get(asked, "client", user="ml", client_id="train")["charts"] == ["producer_byte_rate", "consumer_byte_rate"]


@pytest.mark.parametrize(
    ("asked_for", "users"),
    [
        ({}, ["ml", "alice", "<default>", "web", "search"]),
        ({"limit": 2}, ["ml", "alice"]),
        ({"offset": 3}, ["web", "search"]),
        ({"standing": "near"}, ["web"]),
        ({"standing": "unused"}, []),
        ({"search": "SHADOW"}, ["ml"]),
        ({"search": "data-pl"}, ["alice"]),
        ({"search": "NIGHTLY"}, []),  # the edit has taken the note away
    ],
)
def test_quotas_are_paged_and_filtered_the_nearest_to_its_bound_first(
    asked: Any, asked_for: dict[str, Any], users: list[str]
) -> None:
    assert [row["user"] for row in get(asked, "quotas", **asked_for)["rows"]] == users


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/client", 400),
        ("/api/v1/summary?until=5m", 400),
        ("/api/v1/quotas?standing=far", 400),
        ("/api/v1/client?user=a&usr=b", 400),
        ("/api/v1/clients?limit=0", 400),
        ("/api/v1/explain", 400),
        ("/api/v1/explain?decision_id=zzz", 404),
        ("/api/v1/nothing", 404),
        ("/static/..%2fviews.py", 404),
    ],
)
def test_a_mistake_is_answered_with_what_and_how(asked: Any, path: str, status: int) -> None:
    answer = asked.get(path)
    assert answer.status_code == status
    assert set(answer.json()) == {"error", "fix"}


def test_another_name_of_this_machine_is_refused_without_a_token(asked: Any) -> None:
    assert asked.get("/api/v1/summary", headers={"Host": "evil.example"}).status_code == 421


@pytest.mark.parametrize("path", ["/", "/client", "/quotas", "/pipeline", "/static/app.js", "/favicon.svg"])
def test_the_page_may_load_nothing_from_elsewhere(asked: Any, path: str) -> None:
    answer = asked.get(path)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "://" not in answer.text.replace("http://www.w3.org/", "").replace("http://127.0.0.1", "")


def test_with_a_token_the_data_need_it_and_the_page_does_not(shop: LivedTables) -> None:
    with client_of(shop, "secret") as client:
        wait_until(lambda: client.app.state.feed.state is not None, "the first look at the tables")
        assert client.get("/", headers={"Host": "board.example"}).status_code == 200
        assert client.get("/healthz").status_code == 200
        for path in PARAMETERS:
            for given in ({}, {"Authorization": "Bearer wrong"}):
                answer = client.get(path, headers=given)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        good = {"Authorization": "Bearer secret", "Host": "board.example"}
        assert client.get("/api/v1/summary", headers=good).status_code == 200
        for headers, accepted in (({}, False), ({"Authorization": "Bearer wrong"}, False), (good, True)):
            assert client.get("/access", headers=headers).json() == {"accepted": accepted}


def test_the_commands_of_a_quota_work_as_they_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [quota("<default>", "a b", request_percentage=2.5), quota("it's", "<default>", mode="exempt")]
    tables = LivedTables(tmp_path / "tables", [*QUOTAS, *rows], SENDERS, wall_ms() - 30_000, at_once=True)
    tables.live(30)
    monkeypatch.chdir(tmp_path)
    carry(TABLES_ROOT, tables.root)
    before = {(row["user"], row["client_id"]): row for row in QuotaTable(tables.root).read().rows}
    with client_of(tables) as asked:
        found = get(asked, "quotas")

    for row in found["rows"]:
        kquota("quotas", "delete", *entity_flags(row), "--tables", tables.root)
        words = shlex.split(row["command"])
        assert kquota(*words[words.index("quotas") :], "--tables", tables.root).exit_code == 0
    labels = dict.fromkeys(("owner", "note"))
    after = {(row["user"], row["client_id"]): row for row in QuotaTable(tables.root).read().rows}
    assert after == {entity: row | labels for entity, row in before.items()}
    tried = subprocess.run(["/bin/sh", "-c", found["what_if"]], check=True, capture_output=True, text=True)
    assert "2 of 6 clients throttled" in tried.stdout


def entity_flags(row: dict[str, Any]) -> list[str]:
    words = []
    for flag, name in (("user", row["user"]), ("client", row["client_id"])):
        words += [f"--{flag}-defaults"] if name == "<default>" else [f"--{flag}", name] if name else []
    return words
