"""One dashboard over several clusters: the address says which one, and each is read from its first request on."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.services import named_roots
from pipeline.dashboard.links import About, link_key, link_token
from pipeline.errors import UsageError
from pipeline.process import JobSigns
from pipeline.settings.model import Settings, TablesSettings
from tests.pipeline.cli.running import kquota
from tests.pipeline.dashboard.lived_tables import LivedTables, Sender
from tests.pipeline.dashboard.shop import START_MS, quota
from tests.waiting import wait_until

testclient = pytest.importorskip("starlette.testclient", reason="the extra dashboard is not installed")

from prometheus_client import CollectorRegistry  # noqa: E402

from pipeline.dashboard.http import Clusters, build_app  # noqa: E402
from pipeline.dashboard.reader import Feed, TablesReader  # noqa: E402
from pipeline.dashboard.views import Answers  # noqa: E402

TOKEN = "0123456789abcdef" * 2
ADMIN = {"Authorization": f"Bearer {TOKEN}"}


class Several:
    """A dashboard over the shop, `prod`, and a second cluster, `dev`, and a client on this machine."""

    def __init__(self, prod: LivedTables, dev: LivedTables, token: str | None = None, may_write: bool = False) -> None:
        self.made: list[str] = []

        def cluster(name: str, tables: LivedTables) -> Answers:
            self.made.append(name)
            reader = TablesReader(tables.root, JobSigns(lambda: "7"))
            feed = Feed(reader, lambda: tables.now_ms)
            return Answers(reader, feed, Settings(tables=TablesSettings(root=tables.root)), may_write)

        self.registry = CollectorRegistry()
        self.clusters = Clusters("prod", cluster("prod", prod), {"dev": lambda: cluster("dev", dev)})
        app = build_app(self.clusters, token, lambda: prod.now_ms, self.registry)
        self.client = testclient.TestClient(app, base_url="http://127.0.0.1:8788")

    def get(self, path: str, **parameters: Any) -> Any:
        return self.client.get(path, params=parameters)


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> LivedTables:
    quotas = [quota("bob", "", producer_byte_rate=50_000.0)]
    sends = [Sender("bob", "test", lambda _: {"produced_bytes": 20_000})]
    tables = LivedTables(Path(tmp_path_factory.mktemp("dev")), quotas, sends, START_MS)
    tables.live(80)
    return tables


@contextmanager
def running(prod: LivedTables, dev: LivedTables) -> Iterator[Several]:
    found = Several(prod, dev)
    with found.client:
        wait_until(lambda: found.clusters.first.feed.state is not None, "the first look at the tables")
        yield found


@pytest.fixture(scope="module")
def several(shop: LivedTables, dev: LivedTables) -> Iterator[Several]:
    """For tests to which it is the same what was asked before."""
    with running(shop, dev) as found:
        yield found


@pytest.fixture
def fresh(shop: LivedTables, dev: LivedTables) -> Iterator[Several]:
    """Of which nothing was asked yet."""
    with running(shop, dev) as found:
        yield found


def test_the_address_says_which_cluster_and_without_it_the_first_is_shown(several: Several) -> None:
    talkers = {
        name: {row["user"] for row in several.get("/api/v1/summary", **given).json()["talkers"]}
        for name, given in (("first", {}), ("prod", {"cluster": "prod"}), ("dev", {"cluster": "dev"}))
    }
    assert talkers["first"] == talkers["prod"] == {"alice", "guest", "ml", "search", "web"}
    assert talkers["dev"] == {"bob"}


def test_a_cluster_is_read_from_its_first_request_on(fresh: Several) -> None:
    fresh.get("/api/v1/clusters", cluster="dev")
    fresh.get("/api/v1/quotas")
    assert fresh.made == ["prod"]
    for _ in range(2):
        assert fresh.get("/api/v1/quotas", cluster="dev").status_code == 200
    assert fresh.made == ["prod", "dev"]


def test_the_names_of_the_clusters_are_answered_the_first_one_first(several: Several) -> None:
    assert several.get("/api/v1/clusters").json() == {"clusters": ["prod", "dev"]}


@pytest.mark.parametrize("path", ["/api/v1/summary", "/api/v1/client", "/api/v1/stream", "/api/v1/quotas", "/me.json"])
def test_an_unknown_cluster_is_answered_in_a_sentence_with_the_list(several: Several, path: str) -> None:
    answer = several.get(path, cluster="test", **({"user": "bob"} if path in {"/me.json", "/api/v1/client"} else {}))
    assert answer.status_code == 404
    assert answer.json() == {
        "error": "unknown cluster 'test'; clusters are prod, dev",
        "fix": "add cluster=prod to the address, or another of these",
    }


def test_two_clusters_in_one_address_are_refused(several: Several) -> None:
    answer = several.client.get("/api/v1/summary?cluster=dev&cluster=prod")
    assert (answer.status_code, answer.json()["error"]) == (400, "'cluster' is given twice")


def test_the_age_of_the_figures_is_told_of_each_cluster_that_was_looked_at(fresh: Several) -> None:
    def has_age(cluster: str) -> bool:
        sample = fresh.registry.get_sample_value("kquota_dashboard_look_age_seconds", {"cluster": cluster})
        return sample is not None

    assert [has_age("prod"), has_age("dev")] == [True, False]
    assert fresh.get("/api/v1/summary", cluster="dev").status_code == 200
    assert [has_age("prod"), has_age("dev")] == [True, True]


def test_the_document_has_the_clusters_as_a_parameter_of_every_path(several: Several) -> None:
    paths = several.get("/api/v1/openapi.json").json()["paths"]
    for operations in paths.values():
        for operation in operations.values():
            last = operation["parameters"][-1]
            assert (last["name"], last["schema"]["enum"]) == ("cluster", ["prod", "dev"])


def test_an_edit_changes_the_quotas_of_the_cluster_of_its_address(dev: LivedTables, tmp_path: Path) -> None:
    second = LivedTables(tmp_path, [quota("eve", "", producer_byte_rate=1e5)], [], START_MS)
    several = Several(dev, second, TOKEN, may_write=True)
    with several.client as client:
        version = second.job.quota_table.read().version
        body = {"user": "eve", "values": {"producer_byte_rate": "60kB/s"}, "reason": "less", "if_version": version}
        before = dev.job.quota_table.read()
        answer = client.post("/api/v1/quotas/edit?cluster=dev", json=body, headers=ADMIN)
        assert answer.json()["version"] == version + 1
        assert client.post("/api/v1/quotas/edit?cluster=x", json=body, headers=ADMIN).status_code == 404
    assert dev.job.quota_table.read() == before
    assert [row["producer_byte_rate"] for row in second.job.quota_table.read().rows] == [60_000.0]


def test_a_link_opens_its_client_in_its_cluster_alone(shop: LivedTables, dev: LivedTables) -> None:
    several = Several(shop, dev, TOKEN)
    key = link_key(TOKEN) or b""
    with several.client:
        about = About("dev", "bob", None)
        token = link_token(key, about, shop.now_ms + 1)
        assert several.get("/me.json", **about.parameters, token=token).json()["standing"] == "within"
        for other in ({}, {"cluster": "prod"}):
            assert several.get("/me.json", user="bob", token=token, **other).status_code == 403
        unknown = several.get("/me.json", user="bob", token=token, cluster="test")
        assert unknown.status_code == 403
        assert "prod" not in unknown.text


def test_one_cluster_alone_has_addresses_without_a_name(shop: LivedTables) -> None:
    settings = Settings(tables=TablesSettings(root=shop.root))
    reader = TablesReader(shop.root, JobSigns(lambda: "7"))
    feed = Feed(reader, lambda: shop.now_ms)
    registry = CollectorRegistry()
    app = build_app(Clusters("", Answers(reader, feed, settings), {}), None, lambda: shop.now_ms, registry)
    with testclient.TestClient(app, base_url="http://127.0.0.1:8788") as client:
        assert client.get("/api/v1/clusters").json() == {"clusters": [""]}
        refused = client.get("/api/v1/summary?cluster=prod")
        assert (refused.status_code, refused.json()["error"]) == (
            400,
            "unknown parameter 'cluster'; use since, until",
        )
        client.get("/api/v1/summary")
    assert registry.get_sample_value("kquota_dashboard_look_age_seconds") is not None


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["/srv/tables"], {"srv": "/srv/tables"}),
        ([".kquota/tables"], {"kquota": ".kquota/tables"}),
        (["tables"], {"tables": "tables"}),
        (["/srv/prod/", "dev=/srv/x=y"], {"prod": "/srv/prod/", "dev": "/srv/x=y"}),
        (
            ["s3://bucket/prod/tables", "abfss://c@a.dfs/dev"],
            {"prod": "s3://bucket/prod/tables", "dev": "abfss://c@a.dfs/dev"},
        ),
        (["./a=b"], {"a=b": "./a=b"}),
    ],
)
def test_a_cluster_is_named_or_has_the_name_of_its_folder(given: list[str], found: dict[str, str]) -> None:
    assert named_roots(given) == found
    assert list(named_roots(given)) == list(found)


def test_two_clusters_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two clusters are called prod: /a and /b/prod/tables"):
        named_roots(["prod=/a", "/b/prod/tables"])


def test_the_command_refuses_two_clusters_of_one_name(tmp_path: Path) -> None:
    answer = kquota("dashboard", "--port", "0", "--tables", f"a={tmp_path}", "--tables", f"a={tmp_path}/b")
    assert answer.exit_code == 2
    assert f"Fix: name them, as --tables a-2={tmp_path}/b" in answer.stderr
