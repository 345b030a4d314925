"""One set of settings, told to delta-rs and to Hadoop."""

import pytest
from pydantic import SecretStr, ValidationError

from pipeline.cli.options import Source
from pipeline.settings.loading import load_settings
from pipeline.settings.model import Settings, TablesSettings
from pipeline.settings.places import StoreSettings
from pipeline.tables.address import is_local, table_uri
from pipeline.tables.object_store import delta_rs_options, hadoop_settings, reach_with, scheme_of

SECRET = "not-to-be-seen"  # noqa: S105 - nothing's secret
STORE = StoreSettings(
    endpoint="http://store:9000",
    region="eu-north-1",
    access_key_id=SecretStr("key"),
    secret_access_key=SecretStr(SECRET),
    session_token=SecretStr("token"),
)


@pytest.fixture(autouse=True)
def _nothing_of_aws_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


def options_of(store: StoreSettings, address: str = "s3://bucket/tables") -> dict[str, str] | None:
    reach_with(store, address)
    return delta_rs_options(address)


def test_delta_rs_gets_what_the_settings_say() -> None:
    assert options_of(STORE) == {
        "aws_endpoint": "http://store:9000",
        "aws_allow_http": "true",
        "aws_region": "eu-north-1",
        "aws_access_key_id": "key",
        "aws_secret_access_key": SECRET,
        "aws_session_token": "token",
    }


def test_hadoop_gets_the_same() -> None:
    assert hadoop_settings(STORE, {}) == {
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.hadoop.fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
        "spark.hadoop.fs.s3a.endpoint": "http://store:9000",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.endpoint.region": "eu-north-1",
        "spark.hadoop.fs.s3a.access.key": "key",
        "spark.hadoop.fs.s3a.secret.key": SECRET,
        "spark.hadoop.fs.s3a.session.token": "token",
    }


def test_without_settings_delta_rs_uses_its_environment_and_hadoop_gets_it() -> None:
    assert options_of(StoreSettings()) is None
    found = hadoop_settings(StoreSettings(), {"AWS_ENDPOINT_URL": "http://a", "AWS_DEFAULT_REGION": "us-west-2"})
    assert found["spark.hadoop.fs.s3a.endpoint"] == "http://a"
    assert found["spark.hadoop.fs.s3a.endpoint.region"] == "us-west-2"
    assert not [key for key in found if key.endswith((".access.key", ".secret.key"))]


def test_an_endpoint_of_the_environment_may_be_http_without_another_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:9000")
    options = options_of(StoreSettings())
    assert options == {"aws_endpoint": "http://store:9000", "aws_allow_http": "true"}


def test_other_stores_get_their_own_options_and_none_of_amazons() -> None:
    store = StoreSettings(region="eu-north-1", options={"azure_storage_account_key": SecretStr(SECRET)})
    assert options_of(store, "abfss://c@account.dfs.core.windows.net/tables") == {"azure_storage_account_key": SECRET}


@pytest.mark.parametrize(
    ("address", "scheme"), [("s3://b/t", "s3"), ("S3A://b", "s3a"), ("gs://b", "gs"), (".kquota", ""), ("/a:b", "")]
)
def test_the_scheme_of_an_address(address: str, scheme: str) -> None:
    assert scheme_of(address) == scheme
    assert is_local(address) is (scheme == "")


def test_a_bucket_is_reached_with_its_settings_and_nothing_else_is() -> None:
    reach_with(STORE, "s3://known/tables/", ".kquota/checkpoint")
    assert delta_rs_options(table_uri("s3://known/tables/", "usage")) == options_of(STORE)
    assert delta_rs_options("s3://known") == options_of(STORE)
    for address in ("s3://known-too/tables", "gs://known/tables", table_uri(".kquota/tables", "usage")):
        assert delta_rs_options(address) is None, address


def test_no_secret_is_printed() -> None:
    settings = Settings(store=STORE, tables=TablesSettings(root="s3://bucket/tables"))
    for text in (repr(settings), str(settings), repr(settings.tables.root), settings.model_dump_json()):
        assert SECRET not in text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"endpoint": "store:9000"}, "'store.endpoint' store:9000 does not begin with http:// or https://"),
        ({"access_key_id": "key"}, "only one of .store.access_key_id. and"),
    ],
)
def test_a_store_that_can_not_be_meant_is_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        StoreSettings.model_validate(values)


def test_variables_set_the_store_that_a_command_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KQUOTA_STORE__SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("KQUOTA_STORE__ACCESS_KEY_ID", "key")
    monkeypatch.setenv("KQUOTA_TABLES__ROOT", "s3://of-variables/tables")
    root = Source().settings().tables.root
    assert (delta_rs_options(root) or {})["aws_secret_access_key"] == SECRET


def test_options_of_a_store_are_read_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KQUOTA_STORE__OPTIONS", '{"aws_checksum_algorithm": "sha256"}')
    assert load_settings().store.options == {"aws_checksum_algorithm": SecretStr("sha256")}
