"""Each failure to connect is reported with its cause and the address."""

import re
import selectors
import threading
from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from pipeline.cluster.connecting import _COLLECTOR, LostWhileSigningIn, connection_error, open_client
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import ClusterUnreachable, Unreachable
from tests.forking import in_a_child
from tests.pipeline.cluster.refusals import refusal_of


def test_nothing_listens() -> None:
    refused = refusal_of(lambda timeout_ms: open_client(KafkaAdminClient, "127.0.0.1:1", timeout_ms))
    assert isinstance(refused, ClusterUnreachable)
    assert str(refused).startswith("no Kafka broker answers at 127.0.0.1:1: connection refused")


def test_no_such_host() -> None:
    refused = refusal_of(lambda timeout_ms: open_client(KafkaAdminClient, "nohost.invalid:9092", timeout_ms))
    assert isinstance(refused, ClusterUnreachable)
    assert "nohost.invalid:9092: the host name has no address" in str(refused)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_connects_though_its_parent_was_connecting_and_collects_nothing_for_it() -> None:
    def work() -> tuple[str, int]:
        with pytest.raises(ClusterUnreachable) as refused:
            open_client(KafkaAdminClient, "127.0.0.1:1", 300)
        return str(refused.value)[:31], len(causes)

    with _COLLECTOR.collecting() as causes, _COLLECTOR._installing:
        assert in_a_child(work) == "('no Kafka broker answers at 127.', 0)"


@pytest.mark.parametrize("make", [KafkaAdminClient, KafkaProducer, KafkaConsumer])
def test_a_client_that_could_not_connect_leaves_no_thread_and_no_socket_behind(make: Callable[..., Any]) -> None:
    opened: list[selectors.BaseSelector] = []

    def selector() -> selectors.BaseSelector:
        opened.append(selectors.DefaultSelector())
        return opened[-1]

    with pytest.raises(ClusterUnreachable):
        open_client(make, "127.0.0.1:1", 100, client_id="in-vain", selector=selector)
    assert not [thread.name for thread in threading.enumerate() if "in-vain" in thread.name]
    # A closed selector has no map.
    assert [each.get_map() for each in opened] == [None]


@pytest.mark.parametrize(("protocol", "kind"), [("SASL_PLAINTEXT", Unreachable), ("PLAINTEXT", ClusterUnreachable)])
def test_a_connection_that_is_closed_at_sign_in_is_a_refusal(protocol: str, kind: type[Exception]) -> None:
    options = {"security_protocol": protocol, "sasl_plain_username": "alice"}

    error = connection_error("b:1", options, [LostWhileSigningIn("socket disconnected"), TimeoutError("7")], 2_000)

    assert type(error) is kind


@pytest.mark.broker
def test_a_wrong_password(broker: EmbeddedBroker) -> None:
    options: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    options |= {"sasl_plain_username": "alice", "sasl_plain_password": "wrong"}
    refused = refusal_of(
        lambda timeout_ms: open_client(KafkaAdminClient, broker.sasl_bootstrap_servers, timeout_ms, **options)
    )

    assert isinstance(refused, Unreachable)
    assert re.search(r"refuses user 'alice': .*user.* password", str(refused))
    assert broker.sasl_bootstrap_servers in str(refused)
    assert refused.exit_code == 6


@pytest.mark.broker
def test_the_wrong_security_protocol(broker: EmbeddedBroker) -> None:
    refused = refusal_of(lambda timeout_ms: open_client(KafkaAdminClient, broker.sasl_bootstrap_servers, timeout_ms))

    assert isinstance(refused, ClusterUnreachable)
    assert "closes the connection to a PLAINTEXT client" in str(refused)


@pytest.mark.broker
def test_a_broker_that_answers(broker: EmbeddedBroker) -> None:
    admin: Any = open_client(KafkaAdminClient, broker.bootstrap_servers)

    assert admin.describe_cluster()["brokers"]
    admin.close()
