"""The API over real tables: its numbers are those of the tables, and names are never anything but data."""

import json
import subprocess
from collections import Counter
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
from pipeline.tables.throttles import running_throttles
from tests.pipeline.cli.running import kquota
from tests.pipeline.dashboard.lived_tables import HOSTILE, LivedTables
from tests.pipeline.dashboard.shop import QUOTAS, SENDERS, START_MS, quota
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


def test_who_is_throttled_is_what_the_command_line_says(asked: Any, shop: LivedTables) -> None:
    expected = {(row["user"], row["client_id"]): row for row in running_throttles(shop.root, shop.now_ms)}
    shown = {(row["user"], row["client_id"]): row for row in get(asked, "summary")["throttled"]}
    assert shown.keys() == expected.keys()
    assert shown, "somebody is throttled"
    for client, row in shown.items():
        for name in ("throttled_until_ms", "observed", "bound", "decision_id", "quota_type", "quota_version"):
            assert row[name] == expected[client][name]


def test_a_throttle_has_its_level_its_owner_and_its_begin(asked: Any, shop: LivedTables) -> None:
    decisions = read_table(table_uri(shop.root, "decisions")).to_pylist()
    for row in get(asked, "summary")["throttled"]:
        of_it = [one for one in decisions if one["decision_id"] == row["decision_id"]]
        assert [one["level"] for one in of_it] == [row["level"]]
        assert row["since_ms"] <= row["throttled_until_ms"] <= row["owed_until_ms"]
        assert row["owner"] == {"alice": "data-platform", "guest": "platform"}[row["user"]]


def test_a_record_has_the_owner_of_the_quota_of_its_client(asked: Any) -> None:
    owners = {"alice": "data-platform", "guest": "platform"}
    assert {(row["user"], row["owner"]) for row in get(asked, "summary")["recent"]} == set(owners.items())


def test_the_rates_are_those_of_describe(asked: Any, shop: LivedTables) -> None:
    described = json.loads(kquota("quotas", "describe", "-o", "json", "--tables", shop.root).stdout)
    rows = {(row["user"], row["client_id"]): row for row in get(asked, "quotas")["rows"]}
    assert len(rows) == len(described)
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


def test_clients_that_share_a_sensor_are_one_row(asked: Any) -> None:
    (web,) = [row for row in get(asked, "summary")["talkers"] if row["sensor_user"] == "web"]
    assert (web["clients"], web["sensor_client_id"]) == (2, "")


def test_the_totals_are_over_the_windows_of_the_rates(asked: Any, shop: LivedTables) -> None:
    usage = read_table(table_uri(shop.root, "usage")).to_pylist()
    at_ms = max(row["evaluated_at_ms"] for row in usage)
    in_windows = [row for row in usage if row["sample_start_ms"] > at_ms - 11_000]
    seconds = (at_ms - min(row["sample_start_ms"] for row in in_windows)) / 1_000
    totals = get(asked, "summary")["totals"]
    assert totals["produced_bytes_per_second"] == sum(row["produced_bytes"] or 0 for row in in_windows) / seconds
    assert totals["fetched_bytes_per_second"] == sum(row["fetched_bytes"] or 0 for row in in_windows) / seconds
    assert totals["active_clients"] == 6


def test_of_before_the_first_usage_no_second_is_told(asked: Any, shop: LivedTables) -> None:
    usage = read_table(table_uri(shop.root, "usage")).to_pylist()
    seconds = [second for second, *_ in get(asked, "summary")["seconds"]]
    first, last = (end(row["sample_start_ms"] for row in usage) // 1_000 for end in (min, max))
    assert seconds == [*range(first, last)]


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


def test_a_span_without_the_job_is_a_gap_and_no_zero(asked: Any) -> None:
    found = get(asked, "client", user="search", client_id="indexer")
    values = found["series"]["consumer_byte_rate"]["observed"]
    assert values[0] is None
    assert max(value for value in values if value is not None) == pytest.approx(60_000)


def test_an_explanation_has_the_words_of_the_command_line(asked: Any, shop: LivedTables) -> None:
    found = get(asked, "explain", user="alice", client_id="etl")
    printed = kquota("throttles", "explain", found["decision_id"], "--tables", shop.root).stdout
    assert found["title"] in printed
    for name, text in found["facts"]:
        assert f"  {name:<9} {text}\n" in printed
    for line in found["published"]:
        assert line in printed


def test_the_history_says_who_when_and_why(asked: Any) -> None:
    newest = get(asked, "quotas/history")["versions"][0]
    assert (newest["actor"], newest["reason"]) == ("ada", "month end")
    assert {(change["column"], change["old"], change["new"]) for change in newest["changes"]} >= {
        ("producer_byte_rate", 100_000.0, 150_000.0)
    }


@pytest.mark.parametrize("search", ["NIGHTLY", "etl", "data-pl", "alic"])
def test_quotas_are_found_by_any_of_their_words(asked: Any, search: str) -> None:
    # The edit has taken the note away: it is searched for in the present version only.
    expected = [] if search == "NIGHTLY" else ["alice"]
    assert [row["user"] for row in get(asked, "quotas", search=search)["rows"]] == expected


def test_the_pipeline_shows_batches_lateness_and_sources(tmp_path: Path) -> None:
    shop = LivedTables(tmp_path, QUOTAS, SENDERS, START_MS)
    shop.live(12)
    with client_of(shop) as asked:
        found = get(asked, "pipeline")
    batches = read_table(table_uri(shop.root, "batches")).to_pylist()
    assert [row["batch_id"] for row in found["batches"]] == sorted((row["batch_id"] for row in batches), reverse=True)
    assert found["purgatory"]["held"] == len(running_throttles(shop.root, shop.now_ms))
    assert found["purgatory"]["checks"] > 0
    versions = {source["name"]: source["version"] for source in found["sources"]}
    assert versions["usage"] > len(batches)


def test_dead_letters_have_a_sample_that_is_only_text(asked: Any) -> None:
    found = get(asked, "pipeline")["dead_letters"]["dead_letters"]
    assert [row["sample"] for row in found] == [
        '{"event_time_ms": 1, "user": "", "client_id": "<script>alert(1)</script>"}',
        "not json",
    ]


def test_the_view_now_begins_with_the_verdict(asked: Any) -> None:
    found = get(asked, "summary")
    worst = max(found["throttled"], key=lambda row: row["most_used"])
    assert found["verdict"]["kind"] == "held"
    assert found["verdict"]["text"].startswith("kquota holds 1 user and 1 client: most over: ")
    assert f"{worst['user']}/{worst['client_id']}" in found["verdict"]["text"]
    assert found["totals"]["throttled"] == len(found["throttled"])


def test_records_of_one_client_are_one_row_of_the_view_now(asked: Any) -> None:
    recent, events = get(asked, "summary")["recent"], asked.app.state.feed.state.recent
    assert {(row["user"], row["records"]) for row in recent} == {*Counter(row["user"] for row in events).items()}


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
    ],
)
def test_quotas_are_paged_and_filtered_the_nearest_to_its_bound_first(
    asked: Any, asked_for: dict[str, Any], users: list[str]
) -> None:
    assert [row["user"] for row in get(asked, "quotas", **asked_for)["rows"]] == users


def test_quotas_over_their_bound_are_found(asked: Any) -> None:
    found = get(asked, "quotas", standing="over")["rows"]
    assert all(max(one["used"] for one in row["bounds"].values()) > 1 for row in found)


def test_versions_that_made_the_table_are_not_of_another_tool(asked: Any) -> None:
    makers = [one["by"] for one in get(asked, "quotas/history")["versions"]]
    assert makers[0] == "ada at console"
    assert makers[-1].startswith("kquota, for the table itself (")
    assert not [one for one in makers if one.startswith("another tool")]


def test_an_unknown_page_is_the_page_with_a_sentence(asked: Any) -> None:
    answer = asked.get("/nowhere", headers={"Accept": "text/html"})
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "/static/app.js" in answer.text
    assert asked.get("/api/v1/nowhere", headers={"Accept": "text/html"}).json()["fix"] == "see docs/dashboard.md"


def test_a_hostile_name_comes_back_as_it_is(asked: Any) -> None:
    found = get(asked, "client", user="guest", client_id=HOSTILE)
    assert found["client_id"] == HOSTILE
    assert found["decisions"]


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
        ("/static/..%2fhttp.py", 404),
        ("/static/http.py", 404),
    ],
)
def test_a_mistake_is_answered_with_what_and_how(asked: Any, path: str, status: int) -> None:
    answer = asked.get(path)
    assert answer.status_code == status
    assert set(answer.json()) == {"error", "fix"}


@pytest.mark.parametrize("path", ["/", "/client", "/quotas", "/pipeline", "/static/app.js", "/favicon.svg"])
def test_the_page_may_load_nothing_from_elsewhere(asked: Any, path: str) -> None:
    answer = asked.get(path)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "://" not in answer.text.replace("http://www.w3.org/", "").replace("http://127.0.0.1", "")


def test_another_name_of_this_machine_is_refused_without_a_token(asked: Any) -> None:
    answer = asked.get("/api/v1/summary", headers={"Host": "evil.example"})
    assert (answer.status_code, answer.json()["error"]) == (
        421,
        "host evil.example is not a name of this machine",
    )
    assert asked.get("/healthz", headers={"Host": "pod-7"}).status_code == 200
    for host in ("localhost:8788", "127.0.0.1", "[::1]:8788"):
        assert asked.get("/quotas", headers={"Host": host}).status_code == 200


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


@pytest.mark.parametrize(("given", "accepted"), [("secret", True), ("wrong", False), ("", False)])
def test_the_page_learns_whether_its_token_opens_the_api(shop: LivedTables, given: str, accepted: bool) -> None:
    with client_of(shop, "secret") as client:
        headers = {"Authorization": f"Bearer {given}"} if given else {}
        assert client.get("/access", headers=headers).json() == {"accepted": accepted}


def test_without_a_token_every_request_is_let_in(asked: Any) -> None:
    assert asked.get("/access").json() == {"accepted": True}


def test_a_client_that_was_never_over_a_quota_has_no_decision_to_explain(asked: Any) -> None:
    assert get(asked, "explain", user="nobody") == {"decision_id": None}


def test_every_view_gets_the_head_of_the_state_and_only_the_view_now_all_of_it(asked: Any) -> None:
    head, summary = get(asked, "head"), get(asked, "summary")
    assert head == {name: summary[name] for name in head}
    assert "throttled" in summary.keys() - head.keys()


def test_the_commands_of_a_quota_change_it_and_try_it_as_they_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [quota("<default>", "a b", request_percentage=2.5), quota("it's", "<default>", mode="exempt")]
    tables = LivedTables(tmp_path / "tables", [*QUOTAS, *rows], SENDERS, wall_ms() - 30_000, at_once=True)
    tables.live(30)
    monkeypatch.chdir(tmp_path)
    carry(TABLES_ROOT, tables.root)
    before = {(row["user"], row["client_id"]): row for row in QuotaTable(tables.root).read().rows}
    with client_of(tables) as asked:
        found = get(asked, "quotas")

    def run(command: str) -> str:
        return subprocess.run(["/bin/sh", "-c", command], check=True, capture_output=True, text=True).stdout

    for row in found["rows"]:
        kquota("quotas", "delete", *entity_flags(row), "--tables", tables.root)
        run(row["command"])
    labels = dict.fromkeys(("owner", "note"))
    after = {(row["user"], row["client_id"]): row for row in QuotaTable(tables.root).read().rows}
    assert after == {entity: row | labels for entity, row in before.items()}
    assert len(after) == 7
    assert "2 of 6 clients throttled" in run(found["what_if"])


def entity_flags(row: dict[str, Any]) -> list[str]:
    names = (("user", row["user"]), ("client", row["client_id"]))
    pairs = [(f"--{flag}-defaults",) if name == "<default>" else (f"--{flag.replace('client', 'client-id')}", name)
             for flag, name in names if name]  # fmt: skip
    return [word for pair in pairs for word in pair]
