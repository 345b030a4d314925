"""A store: one set of settings for delta-rs and Hadoop, what stores answer, and the probe of a real one."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from pipeline.cli.options import Source
from pipeline.errors import Refused, Unreachable
from pipeline.settings.model import StoreSettings
from pipeline.tables.object_store import (
    StoreObjects,
    delta_rs_options,
    hadoop_settings,
    reach_with,
    refuse_unfit,
    scheme_of,
    store_error,
)
from pipeline.tables.port import is_local, table_uri
from tests.object_store import BUCKET, SECRET, ObjectStore

HIDDEN = "not-to-be-seen"
STORE = StoreSettings(
    endpoint="http://store:9000",
    region="eu-north-1",
    access_key_id=SecretStr("key"),
    secret_access_key=SecretStr(HIDDEN),
    session_token=SecretStr("token"),
)


@pytest.fixture(autouse=True)
def _nothing_of_aws_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


def options_of(store: StoreSettings, address: str = "s3://bucket/tables") -> dict[str, str] | None:
    reach_with(store, address)
    return delta_rs_options(address)


def test_delta_rs_and_hadoop_get_what_the_settings_say() -> None:
    assert options_of(STORE) == {
        "aws_endpoint": "http://store:9000",
        "aws_allow_http": "true",
        "aws_region": "eu-north-1",
        "aws_access_key_id": "key",
        "aws_secret_access_key": HIDDEN,
        "aws_session_token": "token",
    }
    for_hadoop = {
        "s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
        "s3a.endpoint": "http://store:9000",
        "s3a.path.style.access": "true",
        "s3a.endpoint.region": "eu-north-1",
        "s3a.access.key": "key",
        "s3a.secret.key": HIDDEN,
        "s3a.session.token": "token",
    }
    assert hadoop_settings(STORE, {}) == {f"spark.hadoop.fs.{key}": value for key, value in for_hadoop.items()}


@pytest.mark.parametrize(
    ("address", "scheme"), [("s3://b/t", "s3"), ("S3A://b", "s3a"), ("gs://b", "gs"), (".kquota", ""), ("/a:b", "")]
)
def test_the_scheme_of_an_address(address: str, scheme: str) -> None:
    assert (scheme_of(address), is_local(address)) == (scheme, scheme == "")


def test_a_bucket_is_reached_with_its_settings_and_nothing_else_is() -> None:
    reach_with(STORE, "s3://known/tables/", ".kquota/checkpoint")
    assert delta_rs_options(table_uri("s3://known/tables/", "usage")) == options_of(STORE)
    assert delta_rs_options("s3://known") == options_of(STORE)
    for address in ("s3://known-too/tables", "gs://known/tables", table_uri(".kquota/tables", "usage")):
        assert delta_rs_options(address) is None, address


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


def test_without_settings_the_environment_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options_of(StoreSettings()) is None
    found = hadoop_settings(StoreSettings(), {"AWS_ENDPOINT_URL": "http://a", "AWS_DEFAULT_REGION": "us-west-2"})
    assert found["spark.hadoop.fs.s3a.endpoint"] == "http://a"
    assert found["spark.hadoop.fs.s3a.endpoint.region"] == "us-west-2"
    assert not [key for key in found if key.endswith((".access.key", ".secret.key"))]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:9000")
    assert options_of(StoreSettings()) == {"aws_endpoint": "http://store:9000", "aws_allow_http": "true"}


def test_other_stores_get_their_own_options_and_none_of_amazons() -> None:
    store = StoreSettings(region="eu-north-1", options={"azure_storage_account_key": SecretStr(HIDDEN)})
    assert options_of(store, "abfss://c@account.dfs.core.windows.net/tables") == {"azure_storage_account_key": HIDDEN}


def test_variables_set_the_store_that_a_command_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KQUOTA_STORE__SECRET_ACCESS_KEY", HIDDEN)
    monkeypatch.setenv("KQUOTA_STORE__ACCESS_KEY_ID", "key")
    monkeypatch.setenv("KQUOTA_STORE__OPTIONS", '{"aws_checksum_algorithm": "sha256"}')
    monkeypatch.setenv("KQUOTA_TABLES__ROOT", "s3://of-variables/tables")
    options = delta_rs_options(Source().settings().tables.root) or {}
    assert (options["aws_secret_access_key"], options["aws_checksum_algorithm"]) == (HIDDEN, "sha256")


ANSWER = "Error performing PUT http://store:9000/b/t/1 in 1ms - Server returned non-2xx status code: {}: {}"
XML = "<?xml version='1.0'?>\n<Error><Code>{}</Code><Message>{}</Message>{}</Error>"


def answer(code: str, message: str = "x", more: str = "<StringToSign>AWS4 secret stuff</StringToSign>") -> str:
    return ANSWER.format("403 Forbidden", XML.format(code, message, more))


REGION = "the bucket is in another region"
WRONG = "AuthorizationHeaderMalformed"
NO_ANSWER = "Error performing PUT http://{} in 5s - HTTP error: error sending request"


@pytest.mark.parametrize(
    ("text", "told", "fix"),
    [
        (answer("NotImplemented"), "the store does not know conditional put (If-None-Match)", "use a store"),
        (answer("SlowDown"), "the store answers SlowDown", "repeat the command later"),
        (answer("ExpiredToken"), "the store answers ExpiredToken", "get new credentials"),
        (answer("RequestTimeTooSkewed"), "the store answers RequestTimeTooSkewed", "set the clock of this machine"),
        (answer("SignatureDoesNotMatch"), "the store answers SignatureDoesNotMatch", "correct tables.root"),
        (answer("Unheard"), "the store answers Unheard", "see the store's own log"),
        (
            answer(WRONG, "'us-east-1' is wrong; expecting 'eu-north-1'"),
            f"{REGION}, eu-north-1",
            "correct store.region",
        ),
        (answer(WRONG, "wrong", "<Region>eu-north-1</Region>"), f"{REGION}, eu-north-1", "correct store.region"),
        (ANSWER.format("301 Moved Permanently", ""), REGION, "correct store.region"),
        (ANSWER.format("403 Forbidden", ""), "the store answers 403 Forbidden", "correct tables.root"),
        (NO_ANSWER.format("169.254.169.254/latest/api/token"), "there are no credentials", "set store.access_key_id"),
        (NO_ANSWER.format("127.0.0.1:1/b/t"), "nothing answers at http://127.0.0.1:1", "correct store.endpoint"),
    ],
)
def test_a_refusal_is_told_in_words_with_what_mends_it(text: str, told: str, fix: str) -> None:
    error = store_error("s3://b/t", "write under", OSError(text))
    assert str(error).startswith(f"cannot write under s3://b/t: {told}. Fix: {fix}")
    assert "secret stuff" not in str(error)
    assert "\n" not in str(error)
    assert isinstance(error, Unreachable) is told.startswith("nothing answers")


def test_a_fit_store_passes_and_nothing_is_left_in_it(store: ObjectStore) -> None:
    refuse_unfit(store.address("fit"))
    assert not [file for file in Path(store.folder, BUCKET, "fit").rglob("*") if file.is_file()]


@pytest.mark.parametrize(
    ("change", "bucket", "message"),
    [
        ({}, "nobucket", "the store answers NoSuchBucket"),
        ({"secret_access_key": SecretStr("wrong")}, BUCKET, "the store answers SignatureDoesNotMatch"),
        ({"access_key_id": SecretStr("nobody")}, BUCKET, "the store answers (InvalidAccessKeyId|XAdminUserNotFound)"),
        ({"region": "us-west-2"}, BUCKET, "the bucket is in another region, eu-north-1"),
    ],
)
def test_what_is_wrong_is_told(store: ObjectStore, change: dict[str, Any], bucket: str, message: str) -> None:
    reach_with(store.settings.model_copy(update=change), f"s3://{bucket}")
    with pytest.raises(Refused, match=message) as refused:
        refuse_unfit(f"s3://{bucket}/tables")
    assert SECRET not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_store_that_does_not_answer_is_named(store: ObjectStore) -> None:
    reach_with(store.settings.model_copy(update={"endpoint": "http://127.0.0.1:9"}), f"s3://{BUCKET}")
    with pytest.raises(Unreachable, match=r"nothing answers at http://127\.0\.0\.1:9"):
        refuse_unfit(f"s3://{BUCKET}/tables")


def test_a_store_that_ignores_conditional_put_is_refused(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    create = StoreObjects.create

    def overwrite(objects: StoreObjects, name: str, content: bytes) -> bool:
        objects.delete(name)
        return create(objects, name, content)

    monkeypatch.setattr(StoreObjects, "create", overwrite)
    with pytest.raises(Refused, match=r"the store ignores conditional put \(If-None-Match\)"):
        refuse_unfit(store.address("tables"))
