"""The page of one team: its link opens what it was made for until it ends, and shows nothing of others."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import pytest

from pipeline.clock import wall_ms
from pipeline.dashboard.state import State
from pipeline.dashboard.team import LinkRefused, Team, opened, team_page
from pipeline.dashboard.views import PARAMETERS, TOKEN_VARIABLE
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.quotas.table import TenantTable, local_audit
from pipeline.tables.quotas.tenants import USERS, TenantChange
from pipeline.tables.rates import member_rates
from quota.broker_levels.entries import EntryKey
from quota.tenants import Tenant
from tests.pipeline.cli.running import kquota
from tests.pipeline.dashboard.shop import HOSTILE, START_MS, LivedTables, Sender, quota
from tests.pipeline.dashboard.test_api import client_of
from tests.pipeline.tables.factories import write_rates

TOKEN: Final = "0123456789abcdef" * 4
NOW_MS: Final = 1_700_000_100_000
TEAM: Final = Team("test", "tenant", "team-a", NOW_MS + 60_000)


def signed(address: str) -> str:
    """What a link holds."""
    return dict(parse_qsl(urlsplit(address).query))["link"]


GIVEN: Final = signed(TEAM.link("http://127.0.0.1:8788/", TOKEN))


@pytest.mark.parametrize("name", ["team-a", "a&b=c", "é ünder/%\n<b>"])
@pytest.mark.parametrize("kind", ["tenant", "user"])
def test_a_link_opens_what_it_was_made_for_until_it_ends(kind: Any, name: str) -> None:
    team = Team("test", kind, name, NOW_MS + 60_000)
    link = team.link("https://quotas.example/", TOKEN)
    assert link.startswith("https://quotas.example/team?")
    assert opened(signed(link), TOKEN, NOW_MS + 59_999) == team
    with pytest.raises(LinkRefused, match=r"ended at 2023-11-14 22:16:00 UTC"):
        opened(signed(link), TOKEN, NOW_MS + 60_000)


PAYLOAD, SIGNATURE = GIVEN.rsplit(".", 1)
OTHER = signed(TEAM._replace(name="team-b").link("", TOKEN)).rsplit(".", 1)[0]


@pytest.mark.parametrize(
    ("link", "token"),
    [
        (f"{OTHER}.{SIGNATURE}", TOKEN),
        (f"{PAYLOAD}.{SIGNATURE[:-1]}", TOKEN),
        (PAYLOAD, TOKEN),
        ("", TOKEN),
        (GIVEN, "f" * 64),
        (GIVEN, None),
    ],
    ids=["another name", "another signature", "no signature", "nothing", "another token", "no token"],
)
def test_a_link_that_was_changed_or_is_of_another_token_opens_nothing(link: str, token: str | None) -> None:
    with pytest.raises(LinkRefused, match="this link is not valid"):
        opened(link, token, NOW_MS)


ROW: Final[dict[str, Any]] = {
    **{"broker_id": "", "quota_type": "producer_byte_rate", "mode": "enforce", "clients": 1, "window_ms": 11_000},
    **{"observed": 1e6, "own_bound": 1e6, "bound": 1e6, "level": 3, "sensor_client_id": "", "tenant_level": None},
}
RATES: Final[list[dict[str, Any]]] = [
    {"tenant": "team-a", "sensor_user": "ann", "observed": 3e6, "bound": 3.6e6, "broker_held_share": 0.2},
    {"tenant": "team-a", "sensor_user": "abe", "sensor_client_id": "etl", "level": 1, "observed": 5e5},
    {"tenant": "team-a", "sensor_user": "amy", "level": 9, "own_bound": 4e5, "bound": 4e5, "observed": 1e5},
    {"tenant": "team-a", "sensor_user": "sue", "mode": "shadow", "observed": 9e5, "quota_type": "consumer_byte_rate"},
    {"tenant": "team-a", "sensor_user": "ann", "mode": "shadow", "bound": 777e6},
    {"tenant": "team-a", "sensor_user": "ann", "sensor_client_id": "web", "level": 1, "mode": "shadow", "bound": 9e6},
    {"tenant": "of-brokers", "sensor_user": "joe", "broker_id": "1", "observed": 2e6, "bound": 4e6},
    {"tenant": "of-brokers", "sensor_user": "joe", "broker_id": "2", "observed": 3e6, "bound": 4e6},
    {
        "tenant": "of-brokers",
        "sensor_user": "jim",
        "broker_id": "2",
        "observed": 8e5,
        "bound": 4e6,
        "tenant_level": 1.2,
    },
    {"tenant": "x", "level": 9, "sensor_user": "bob", "observed": 3e5},
    {"tenant": "y", "level": 9, "sensor_user": "bob", "observed": 2e5},
    {"tenant": "team-a", "sensor_user": "ann", "clients": None, "own_rate": 1.0, "observed": 778e6},
    {"tenant": "team-b", "sensor_user": "bea", "bound": 779e6},
    {"tenant": None, "sensor_user": "ann", "quota_type": "consumer_byte_rate", "bound": 780e6},
    {"tenant": None, "sensor_user": "", "sensor_client_id": "shared", "level": 7, "bound": 781e6},
]
OF_BROKERS: Final = Tenant("of-brokers", ("j*",), (), (4e6, None, None), (4e5, None, None))
LENDS: Final = Tenant("team-a", ("a*",), (), (4e6, None, None), (4e5, None, None), lend=True)


def hold(user: str, tenant: str | None) -> dict[str, Any]:
    names = {"user": user, "client_id": "etl", "tenant": tenant, "quota_type": "producer_byte_rate"}
    return {**names, "broker_id": "", "throttled_until_ms": NOW_MS + 7_000}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rates of two tenants, and of clients without one."""
    root = str(tmp_path_factory.mktemp("tables"))
    rows = [{**ROW, "tenant": None, **row} for row in RATES]
    write_rates(root, NOW_MS, [{**row, "share": row["observed"] / row["bound"]} for row in rows], "test")
    return root


def shown(root: str, team: Team, now_ms: int = NOW_MS) -> str:
    """The texts of a page, a line for each row and paragraph."""
    running = [hold("ann", "team-a"), hold("bea", "team-b"), hold("carl", None)]
    state = State(now_ms, 1, health=SimpleNamespace(), cluster="test", running=running)  # type: ignore[arg-type]
    reader: Any = SimpleNamespace(root=root, snapshot=lambda: SimpleNamespace(tenants=(LENDS, OF_BROKERS)))
    html = team_page(reader, lambda: state, team, now_ms).decode()
    lines = re.sub(r"</tr>|</p>|</h\d>", "\n", html.partition("<body>")[2])
    return re.sub(r" *(<[^>]*>)+ *", "  ", lines)


def test_a_tenants_page_has_its_use_its_bound_its_holds_and_what_to_do(root: str) -> None:
    found = [line.strip() for line in shown(root, TEAM).splitlines() if line.strip()]
    assert found[1].startswith("The team is near its bound. ann uses most of it: let that")
    rows = [
        "producer  3.6 MB/s  4.0 MB/s  90 %",
        "ann/etl  producer  7 s",
        "ann  producer  3.0 MB/s  3.6 MB/s, 3.6 × its own  83 %  12 s of the last minute",
        "abe/etl  producer  500.0 kB/s  1.0 MB/s  50 %",
        "amy, clients without a quota of their own  producer  100.0 kB/s  400.0 kB/s  25 %",
        "sue  consumer  900.0 kB/s  1.0 MB/s, not enforced  90 %",
    ]
    assert [line for line in found if line in rows] == rows
    assert "Cluster test, 2023-11-14 22:15:00 UTC. This link ends at 2023-11-14 22:16:00 UTC." in found[-1]
    assert "These figures are 20 s old" in shown(root, TEAM, NOW_MS + 20_000)


def test_the_bound_of_a_tenant_is_that_of_each_broker_where_brokers_count(root: str) -> None:
    text = shown(root, TEAM._replace(name="of-brokers"))
    assert "The team is at its bound and wants more. joe uses most of it" in text
    assert "producer, broker 1  2.0 MB/s  4.0 MB/s  50 %" in text
    assert "producer, broker 2  3.8 MB/s  4.0 MB/s  95 %" in text
    assert "joe  producer, broker 1  2.0 MB/s" in text


def test_a_user_in_two_tenants_has_a_member_in_each_on_its_page(root: str) -> None:
    text = shown(root, TEAM._replace(kind="user", name="bob"))
    for tenant, rate in (("x", "300.0"), ("y", "200.0")):
        assert f"bob, clients without a quota of their own, in tenant {tenant}  producer  {rate} kB/s" in text


@pytest.mark.parametrize(
    ("team", "others"),
    [
        (TEAM, ("team-b", "bea", "carl", "shared", "777", "778", "779", "780", "781")),
        (Team("test", "user", "bea", NOW_MS + 1), ("team-a", "ann", "abe", "carl", "shared", "777", "780", "781")),
        (Team("test", "tenant", "gone", NOW_MS + 1), ("team-a", "ann", "bea", "carl", "shared", "4.0 MB/s")),
    ],
)
def test_nothing_of_others_is_on_a_page(team: Team, others: tuple[str, ...], root: str) -> None:
    text = shown(root, team)
    assert [other for other in others if other in text] == []


@pytest.fixture(scope="module")
def asked(shop: LivedTables) -> Iterator[Any]:
    with client_of(shop, TOKEN) as client:
        yield client


def test_a_link_opens_the_page_without_the_token_and_no_other_path(asked: Any, shop: LivedTables) -> None:
    team = Team("test", "user", "alice", shop.now_ms + 60_000)
    answer = asked.get(team.link("", TOKEN))
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "alice/etl" in answer.text
    assert not re.search("guest|search|tracker|web|onerror", answer.text)
    query = {"link": signed(team.link("", TOKEN))}
    for path in PARAMETERS:
        assert asked.get(path, params=query).status_code == 401, path
        header = {"authorization": f"Bearer {query['link']}"}
        assert asked.get(path, headers=header).status_code == 401, path
    assert asked.get("/access", headers=header).json() == {"accepted": False}
    assert asked.post(team.link("", TOKEN)).status_code == 405


def test_names_of_clients_are_text_on_the_page(asked: Any, shop: LivedTables) -> None:
    text = asked.get(Team("test", "user", HOSTILE, shop.now_ms + 60_000).link("", TOKEN)).text
    assert HOSTILE not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text


def test_without_a_valid_link_the_page_says_only_that(asked: Any, shop: LivedTables) -> None:
    team = Team("test", "user", "alice", shop.now_ms + 60_000)
    for path in (
        f"{team.link('', TOKEN)}A",
        team.link("", "f" * 64),
        team._replace(until_ms=shop.now_ms).link("", TOKEN),
        team._replace(cluster="other").link("", TOKEN),
        "/team",
    ):
        answer = asked.get(path)
        assert (answer.status_code, "This link opens nothing" in answer.text) == (403, True), path
        assert not re.search("alice|guest|B/s", answer.text.replace("kquota", ""))
    with client_of(shop) as without_token:
        assert without_token.get(team.link("", TOKEN)).status_code == 403


def test_while_the_tables_cannot_be_read_the_page_says_so(shop: LivedTables, tmp_path: Path) -> None:
    path = Team("test", "user", "alice", shop.now_ms + 60_000).link("", TOKEN)
    gone: Any = SimpleNamespace(root=str(tmp_path), now_ms=shop.now_ms)
    with client_of(gone, TOKEN) as client:
        answer = client.get(path)
        assert answer.status_code == 503
        assert "The figures cannot be read now" in answer.text
        assert 'http-equiv="refresh"' in answer.text
        assert client.get(f"{path}A").status_code == 403


def made(shop: LivedTables, *arguments: str) -> Any:
    return kquota("tenants", "link", *arguments, "--tables", shop.root)


def test_the_command_prints_a_link_that_the_dashboard_opens(shop: LivedTables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    before_ms = wall_ms()
    answer = made(shop, "--user", "alice", "--until", "2h", "--address", "https://quotas.example/")
    (link,) = answer.stdout.splitlines()
    assert link.startswith("https://quotas.example/team?link=")
    assert opened(signed(link), TOKEN, before_ms + 7_199_000).name == "alice"
    with pytest.raises(LinkRefused, match="ended"):
        opened(signed(link), TOKEN, wall_ms() + 7_200_000)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "told"),
    [
        ((), 2, "a link is for one tenant, or for one user"),
        (("team-a", "--user", "alice"), 2, "a link is for one tenant, or for one user"),
        (("--user", ""), 2, "is empty"),
        (("team-a",), 3, "no tenant team-a; there are none"),
        (("--user", "alice", "--until", "2020-01-01"), 2, "is not within the next ten years"),
        (("--user", "alice", "--until", "9999999d"), 2, "is not within the next ten years"),
    ],
)
def test_a_link_that_would_open_nothing_is_not_made(
    arguments: tuple[str, ...], exit_code: int, told: str, shop: LivedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    answer = made(shop, *arguments)
    assert (answer.exit_code, answer.stdout, told in answer.stderr) == (exit_code, "", True), answer.stderr
    monkeypatch.delenv(TOKEN_VARIABLE)
    assert "there is none" in made(shop, "--user", "alice").stderr


def sent(rate: float, _second: float) -> dict[str, float]:
    return {"produced_bytes": rate}


@pytest.fixture(scope="module")
def lending(tmp_path_factory: pytest.TempPathFactory) -> LivedTables:
    """Ann and Abe have 100 kB/s each in a tenant that lends: she wants five times as much, he next to nothing."""
    quotas = [quota(user, "", producer_byte_rate=100_000.0) for user in ("ann", "abe", "zoe")]
    wanted = {"ann": 500_000, "abe": 5_000, "zoe": 80_000}
    senders = [Sender(user, "etl", partial(sent, rate)) for user, rate in wanted.items()]
    tables = LivedTables(tmp_path_factory.mktemp("lending"), quotas, senders, START_MS, at_once=True)
    create_missing(tables.root, [TABLES["tenants"]])
    team = TenantChange("team-a", {"producer_byte_rate": 200_000.0, "lend": True}, {USERS: ["a*"]})
    TenantTable(tables.root).alter([team], local_audit("test"))
    tables.live(60)
    return tables


def test_a_job_that_lends_is_seen_on_the_page_and_by_the_sync(lending: LivedTables) -> None:
    with client_of(lending, TOKEN) as client:
        text = client.get(Team("test", "tenant", "team-a", lending.now_ms + 60_000).link("", TOKEN)).text
    assert re.search(r"<td>ann</td>.*<td>19\d\.\d kB/s, 1\.9 × its own</td>", text)
    assert "<td>200.0 kB/s</td>" in text
    assert "zoe" not in text
    as_of_ms, rates = member_rates(lending.root)
    assert lending.now_ms - as_of_ms < 2_000
    assert {key.user: rate.own_bound for key, rate in rates.items()} == {"ann": 100_000.0, "abe": 100_000.0}
    ann = rates[EntryKey("ann", "", "producer_byte_rate")]
    assert 190_000 < ann.bound < 200_000
    assert ann.observed > ann.own_bound
