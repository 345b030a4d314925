"""What stores answer, as Amazon, MinIO and versitygw word it, and what the operator reads."""

import pytest

from pipeline.errors import Unreachable
from pipeline.tables.object_store import store_error

ANSWER = "Error performing PUT http://store:9000/b/t/1 in 1ms - Server returned non-2xx status code: {status}: {body}"
XML = "<?xml version='1.0'?>\n<Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>"


def told(code: str, message: str = "", more: str = "", status: str = "403 Forbidden") -> str:
    body = XML.format(code=code, message=message, more=more)
    return str(store_error("s3://b/t", "write under", OSError(ANSWER.format(status=status, body=body))))


@pytest.mark.parametrize(
    ("code", "told_as"),
    [
        ("NoSuchBucket", "there is no such bucket. Fix: create it, or correct tables.root"),
        ("AccessDenied", "the store denies access. Fix: grant s3:ListBucket"),
        ("InvalidAccessKeyId", "the store does not know the access key. Fix: correct store.access_key_id"),
        ("SignatureDoesNotMatch", "the secret does not belong to the access key"),
        ("NotImplemented", "the store does not know conditional put (If-None-Match)"),
        ("ExpiredToken", "the session token has expired"),
        ("SlowDown", "the store answers SlowDown"),
    ],
)
def test_a_refusal_is_told_in_words(code: str, told_as: str) -> None:
    assert told(code).startswith(f"cannot write under s3://b/t: {told_as}")


@pytest.mark.parametrize(
    "answer",
    [
        told("AuthorizationHeaderMalformed", "the region 'us-east-1' is wrong; expecting 'eu-north-1'"),
        told("AuthorizationHeaderMalformed", "wrong", "<Region>eu-north-1</Region>"),
    ],
)
def test_a_wrong_region_is_told_with_the_right_one(answer: str) -> None:
    assert "the bucket is in another region, eu-north-1. Fix: correct store.region" in answer


def test_a_redirect_to_another_region_without_a_word_is_one_too() -> None:
    error = store_error("s3://b/t", "list", OSError(ANSWER.format(status="301 Moved Permanently", body="")))
    assert error.message == "cannot list s3://b/t: the bucket is in another region"


def test_a_refusal_without_a_body_is_one() -> None:
    error = store_error("s3://b/t", "read", OSError(ANSWER.format(status="403 Forbidden", body="")))
    assert error.message == "cannot read s3://b/t: the store denies access"


def test_a_store_that_does_not_answer_is_named_by_endpoint_and_another_exit_code() -> None:
    text = "Generic S3 error: Error performing PUT http://127.0.0.1:1/b/t - HTTP error: error sending request"
    error = store_error("s3://b/t", "list", OSError(text))
    assert isinstance(error, Unreachable)
    assert (error.message, error.exit_code) == ("cannot list s3://b/t: nothing answers at http://127.0.0.1:1", 6)


def test_missing_credentials_are_told_and_not_that_a_machine_has_no_metadata() -> None:
    text = "Error performing PUT http://169.254.169.254/latest/api/token in 5s - HTTP error: error sending request"
    assert store_error("s3://b/t", "list", OSError(text)).message == "cannot list s3://b/t: there are no credentials"


def test_nothing_else_of_the_answer_is_told() -> None:
    told_line = told("SignatureDoesNotMatch", "x", "<StringToSign>AWS4 secret stuff</StringToSign>")
    assert "secret stuff" not in told_line
    assert "\n" not in told_line
