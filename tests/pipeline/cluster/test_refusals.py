"""Refusals of brokers as our errors: who was refused what, and what to do."""

import pytest
from kafka import errors

from pipeline.cluster.acls import ALTER_QUOTAS, Acl
from pipeline.cluster.client_properties import kafka_options
from pipeline.cluster.connecting import connection_error, permission_missing, principal_of
from pipeline.cluster.sign_in import TokenProvider, TokenRefused, TokenSource
from pipeline.errors import ClusterUnreachable, Unreachable

ALICE = {"sasl_plain_username": "alice", "sasl_plain_password": "hidden"}
RIGHTS = (
    Acl("topic", "quota.throttle.v1", "Write"),
    Acl("topic", "quota.marker.v1", "Read"),
    Acl("group", "kquota-j", "Read"),
    Acl("transactional-id", "kquota-j", "Write"),
    ALTER_QUOTAS,
)


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (errors.TopicAuthorizationFailedError({"quota.marker.v1"}), RIGHTS[1:2]),
        (errors.TopicAuthorizationFailedError("partition 0"), RIGHTS[:2]),
        (errors.GroupAuthorizationFailedError("FindCoordinatorResponse"), RIGHTS[2:3]),
        (errors.TransactionalIdAuthorizationFailedError(), RIGHTS[3:4]),
        (errors.ClusterAuthorizationFailedError("Cluster authorization failed."), RIGHTS[4:]),
    ],
)
def test_a_refusal_names_the_right_that_is_missing(error: Exception, named: tuple[Acl, ...]) -> None:
    told = permission_missing(error, RIGHTS, ALICE, "b:1")
    assert told is not None
    assert told.acls == named
    assert "'User:alice' is not allowed" in told.message
    assert "hidden" not in str(told)


@pytest.mark.parametrize("error", [None, errors.KafkaTimeoutError(), errors.ProducerFencedError(), OSError("x")])
def test_a_failure_for_another_reason_is_no_refusal(error: Exception | None) -> None:
    assert permission_missing(error, RIGHTS, ALICE, "b:1") is None


def test_a_refusal_of_a_kind_that_is_not_wanted_names_nothing() -> None:
    assert permission_missing(errors.ClusterAuthorizationFailedError(), RIGHTS[:4], ALICE, "b:1") is None


def test_the_principal_is_known_from_the_password_or_the_token() -> None:
    no_endpoint = TokenProvider(TokenSource("http://127.0.0.1:1/token", "c", "hidden"))
    assert principal_of(ALICE) == "User:alice"
    assert principal_of({}) == "User:ANONYMOUS"
    assert principal_of(kafka_options({"security.protocol": "SSL"})) == "User:<subject of its certificate>"
    assert principal_of({"sasl_oauth_token_provider": no_endpoint}) == "User:<subject of its token>"


@pytest.mark.parametrize(
    ("cause", "protocol", "kind", "told"),
    [
        (
            errors.IllegalSaslStateError(),
            "SASL_SSL",
            Unreachable,
            "refuses user 'alice': this listener knows no SASL",
        ),
        (
            errors.UnsupportedSaslMechanismError(),
            "SASL_SSL",
            Unreachable,
            "this listener does not have the mechanism PLAIN. Fix: check sasl.mechanism",
        ),
        (
            errors.SaslAuthenticationFailedError("SaslAuthenticationFailedError: Authentication failed: Wrong"),
            "SASL_SSL",
            Unreachable,
            "refuses user 'alice': Wrong. Fix: check sasl.mechanism",
        ),
        (
            errors.KafkaConnectionError("[SSL: SSLV3_ALERT_BAD_CERTIFICATE] sslv3 alert bad certificate"),
            "SSL",
            Unreachable,
            "it wants a client certificate that it trusts and that has not expired",
        ),
        (
            errors.KafkaConnectionError("Handshake failed: [SSL: WRONG_VERSION_NUMBER] wrong version number"),
            "SSL",
            ClusterUnreachable,
            "it does not speak TLS on this port. Fix: set security.protocol",
        ),
        (TokenRefused("https://idp", "answers 500"), "SASL_SSL", TokenRefused, "no OAuth token from https://idp: it"),
        (TimeoutError("7"), "SSL", ClusterUnreachable, "7. Fix: check the address"),
    ],
)
def test_each_cause_is_reported_in_one_line(cause: Exception, protocol: str, kind: type[Exception], told: str) -> None:
    error = connection_error(
        "b:1", {"security_protocol": protocol, "sasl_mechanism": "PLAIN", **ALICE}, [OSError("earlier"), cause], 2_000
    )
    assert type(error) is kind
    assert told in str(error)
    assert error.exit_code == 6
