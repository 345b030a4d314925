"""Defects of what meets the cluster: topics, transactions, sign-in, rights."""

from typing import Final

from tests.mutations.planting import Defect

_PROPERTIES: Final = "tests/pipeline/cluster/test_client_properties.py"
_TLS: Final = "tests/pipeline/cluster/test_sign_in.py"
_TOPICS: Final = "tests/pipeline/cluster/test_topics.py"
_OAUTH: Final = "tests/pipeline/cluster/test_sign_in.py"
_REFUSALS: Final = "tests/pipeline/cluster/test_connecting.py"
_CONNECTING: Final = "tests/pipeline/cluster/test_connecting.py"
_HAND: Final = "tests/faults/test_hand_job.py"
_TRANSACTIONS: Final = "tests/pipeline/cluster/test_transactions.py"
_TOPIC_IDS: Final = "tests/pipeline/cluster/test_topics.py"

DEFECTS: Final = (
    Defect(
        "records of throttles may be deleted before the throttles end",
        "topic_specs",
        ("max(HOUR_MS, 2 * longest_throttle_ms)", "HOUR_MS"),
        _TOPICS,
    ),
    Defect(
        "cleanup.policy=delete,compact is refused, as if the order mattered",
        "pipeline.cluster.topics:_words",
        "lambda original, value: value",
        _TOPICS,
        is_slow=True,
    ),
    Defect(
        "a usage topic with the clients' own times is only warned of",
        "_check_settings",
        ('"error" if key in spec.required and not harmless else "warning"', '"warning"'),
        _TOPICS,
        is_slow=True,
    ),
    Defect(
        "a security setting that is not known is passed over",
        "read_sign_in",
        ("for key in ours if key not in known]", "for key in ours if False]"),
        _PROPERTIES,
    ),
    Defect(
        "certificates are used where no TLS is spoken",
        "read_sign_in",
        ('tls=tls if protocol.endswith("SSL") else None', "tls=tls"),
        _PROPERTIES,
    ),
    Defect(
        "bootstrap.servers in client.properties ends every command",
        "ClusterAccess.client_options",
        ('options.pop("bootstrap_servers", None)', "pass"),
        "tests/pipeline/cluster/test_client_properties.py",
    ),
    Defect(
        "a secret with a quote in it ends the quotes around it",
        "pipeline.cluster:resolved",
        (' if key == "sasl.jaas.config" else found', " if False else found"),
        "tests/pipeline/cluster/test_client_properties.py",
    ),
    Defect(
        "a broker's name is not checked against its certificate",
        "read_tls",
        ('check_hostname=algorithm == "https"', "check_hostname=False"),
        f"{_TLS} {_CONNECTING}",
    ),
    Defect(
        "a token is fetched for each connection",
        "TokenProvider.token",
        ("if now >= self._renew_at:", "if True:"),
        _OAUTH,
    ),
    Defect(
        "a refused call names every right of the command, not the one that is missing",
        "permission_missing",
        ("named or acls", "acls"),
        _REFUSALS,
    ),
    Defect(
        "a wrong password is told as a cluster that is away",
        "pipeline.cluster:_refusal",
        ("if refused is not None:", "if False:"),
        _REFUSALS,
    ),
    Defect(
        "a client that could not connect leaves its thread and its sockets behind",
        "_make_or_close",
        ("            made.close()", "            pass"),
        _CONNECTING,
    ),
    Defect(
        "the marker moves past a record that has expired",
        "MarkedTransactions.commit",
        ("future.get(timeout=max(deadline - time.monotonic(), 0))", "pass"),
        "tests/pipeline/throttle/test_trouble.py::test_the_marker_does_not_move_past_a_record_that_has_expired",
        is_slow=True,
    ),
    Defect(
        "a usage topic that was made anew is read on at the old offset",
        "refuse_other_usage_topic",
        "lambda original, *arguments: None",
        f"{_HAND}::test_nothing_is_stored_of_a_batch_that_may_be_of_another_topic_of_the_name",
    ),
    Defect(
        "a throttle topic that was made anew is published on without a word",
        "refuse_other_throttle_topics",
        "lambda original, *arguments: None",
        f"{_HAND}::test_a_throttle_or_marker_topic_made_anew_is_refused_running_or_at_a_start",
    ),
    Defect(
        "a late end of a transaction ends the next one before its mark",
        "MarkedTransactions.commit",
        ("if self._may_come_late:", "if False:"),
        f"{_TRANSACTIONS}::test_a_request_that_comes_late_repeats_no_record",
        is_slow=True,
    ),
    Defect(
        "the id of a topic is not that of Kafka's tools",
        "id_text",
        "lambda original, topic_id: str(topic_id or '')",
        _TOPIC_IDS,
    ),
    Defect(
        "a topic without a known id counts as another one",
        "is_other",
        "lambda original, before, now, topic: before.get(topic) != now.get(topic)",
        _TOPIC_IDS,
    ),
)
