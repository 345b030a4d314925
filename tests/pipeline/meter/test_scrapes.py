"""Pages of exporters: which lines are sensors, whose they are, and what they show."""

import numpy as np
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.meter.scrapes import FETCHED, PRODUCED, QUOTA_PATTERNS, REQUEST, NameMap, Page, SensorTable
from tests.deploy.commands import DEPLOY
from tests.pipeline.meter.kafka_sensor import exported, jmx_quoted, sanitized

PAGE = b"""\
# HELP kafka_server_quota_byte_rate attributes
# TYPE kafka_server_quota_byte_rate gauge
kafka_server_quota_byte_rate{resource="Produce",user="alice",clientId="etl"} 1.5E6
kafka_server_quota_byte_rate{resource="Fetch",user="alice",clientId="etl",} 2000.0 1732000000000
kafka_server_quota_request_time{resource="Request",user="alice",clientId="etl"} 12.5
kafka_server_quota_throttle_time{resource="Produce",user="alice",clientId="etl"} NaN
kafka_server_quota_byte_rate{resource="LeaderReplication"} 7.0
kafka_server_request_exempt_request_time 7.0
kafka_server_quota_byte_rate{resource="ControllerMutation",user="alice",clientId="etl"} 7.0
jvm_threads_current 25.0
"""


def table(*pairs: str) -> SensorTable:
    return SensorTable("1", NameMap.of(pairs))


def shown(sensors: SensorTable, page: Page) -> dict[tuple[str, str, int], float]:
    """Rates above 0 by user, client-id and what is measured."""
    return {
        (sensors.clients[client].user, sensors.clients[client].client_id, measure): rate
        for (measure, client), rate in zip(sensors.places.tolist(), page.rates.tolist(), strict=True)
        if rate
    }


def test_only_sensors_of_clients_are_read() -> None:
    sensors = table()
    page = sensors.read(PAGE)
    assert shown(sensors, page) == {
        ("alice", "etl", PRODUCED): 1.5e6,
        ("alice", "etl", FETCHED): 2000.0,
        ("alice", "etl", REQUEST): 1.25e8,
    }
    assert (page.shown, page.refused, page.reason) == (3, 0, "")


@pytest.mark.parametrize(
    ("line", "pairs"),
    [
        ('kafka_server_quota_byte_rate{resource="Produce",user="u",clientId="c"} 5', ()),
        ('kafka_server_quota_byte_rate{type="Produce",user="u",client_id="c"} 5', ()),
        ('kafka_server_Produce_byte_rate{client_id="c",user="u",} 5', ()),
        ('kafka_server_produce_byte_rate{client_id="c", user="u"} 5.0', ()),
        ('Acme_in{who="u",app="c"} 5', ("acme_in=produced_bytes", "who=user", "app=client_id")),
    ],
)
def test_every_naming_scheme_shows_the_same(line: str, pairs: tuple[str, ...]) -> None:
    sensors = table(*pairs)
    assert shown(sensors, sensors.read(line.encode())) == {("u", "c", PRODUCED): 5.0}


@pytest.mark.parametrize("pair", ["x", "=user", "x=", "x=bytes", "a b=user", "x=user=y"])
def test_another_mapping_is_refused(pair: str) -> None:
    with pytest.raises(ValueError, match="is not NAME=MEANING"):
        NameMap.of([pair])


def test_two_lines_of_one_sensor_are_refused_and_the_others_are_read() -> None:
    sensors = table()
    lines = (
        b'kafka_server_produce_byte_rate{client_id="c",user="u"} 5\n'
        b'kafka_server_quota_byte_rate{resource="Produce",user="u",clientId="c"} 6\n'
        b'kafka_server_fetch_byte_rate{client_id="c",user="u"} 7\n'
    )
    for _ in range(2):
        page = sensors.read(lines)
        assert shown(sensors, page) == {("u", "c", FETCHED): 7.0}
        assert (page.shown, page.refused) == (1, 2)
        assert page.reason.endswith('client_id="c",user="u"}: another line has its client, too')
    assert shown(sensors, sensors.read(lines[: lines.index(b"\n")])) == {("u", "c", PRODUCED): 5.0}


ONE, TWO, BOTH = ("user",), ("client_id",), ("user", "client_id")


@pytest.mark.parametrize(
    ("labels", "rule"),
    [
        # Public files of rules: the one of a client-id before that of both, the one of a user before that of both, and
        # jmx_exporter's own order with clients that call themselves `x, user=bob, client-id=y` and `x, client-id=y`.
        ('resource="Produce, user=alice",clientId="etl",', TWO),
        ('resource="Produce",user="alice, client-id=etl",', ONE),
        (r'resource="Produce, user=mallory, client-id=\"x",user="bob",clientId="y\"",', BOTH),
        (r'resource="Produce",user="mallory, client-id=\"x",clientId="y\"",', BOTH),
        # The rules of before, without both ends: `kafka.server<type=Produce, user=bob, client-id=etl><>byte-rate`.
        (r'resource="Produce",user="bob",clientId="etl><>byte-rate\""', BOTH),
        (r'resource="Produce",clientId="\"x"', TWO),
        ('resource="Produce",clientId="a,b"', TWO),
        (r'resource="Produce",clientId="\"etl\""', TWO),
        (r'resource="Produce",user="\"bob\"",clientId="etl"', BOTH),
    ],
)
def test_a_line_that_rules_made_of_several_names_is_refused_with_the_line_to_mend(
    labels: str, rule: tuple[str, ...]
) -> None:
    sensors = table()
    page = sensors.read(f"kafka_server_quota_byte_rate{{{labels}}} 5\n".encode())
    assert (page.shown, page.refused, sensors.clients) == (0, 1, [])
    assert f"Fix: give that rule the line pattern: '{QUOTA_PATTERNS[rule]}' (deploy/" in page.reason


@pytest.mark.parametrize(
    ("series", "reason"),
    [
        (
            "kafka_server_produce_user_alice_client_id_etl_byte_rate",
            "its exporter makes user and client-id parts of the metric's name. Fix: put the rules of deploy/",
        ),
        (
            'kafka_server_Produce__user_alice_byte_rate{clientId="etl"}',
            "its exporter makes user and client-id parts of the metric's name. Fix: put the rules of deploy/",
        ),
        (
            'kafka_server_quota_fetch_byte_rate{user="alice",client="etl"}',
            "its metric is not known. Fix: --map kafka_server_quota_fetch_byte_rate=fetched_bytes, and LABEL=user or ",
        ),
        (
            'kafka_server_quota_request_time{resource="Request",principal="alice"}',
            "no label of it is known to be a user or client-id. Fix: --map LABEL=user --map LABEL=client_id",
        ),
        (
            'redpanda_kafka_quotas_client_quota_throughput_by_entity{redpanda_quota_group_name="g",'
            'redpanda_quota_type="produce_quota"}',
            "it is of a prefix of client-ids, which kquota has no quota for",
        ),
    ],
)
def test_a_quota_line_that_cannot_be_read_is_refused_with_its_reason(series: str, reason: str) -> None:
    page = table().read(f"{series} 5\n".encode())
    assert (page.shown, page.refused) == (0, 1)
    assert reason in page.reason
    mapped = page.reason.partition("--map ")[2].partition(",")[0]
    if mapped.startswith("kafka"):
        assert table(mapped).read(f"{series} 5\n".encode()).shown == 1


def test_the_line_to_mend_is_that_of_the_file_of_rules() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "jmx-quotas.yml").read_text("utf-8"))["rules"]
    of_quotas = [rule["pattern"] for rule in rules if "kafka" in rule["pattern"]]
    assert of_quotas == [QUOTA_PATTERNS[names] for names in (BOTH, ONE, TWO)]


def test_names_lose_quotes_only_where_jmx_exporter_wrote_the_page() -> None:
    lines = (
        rb'kafka_server_produce_byte_rate{client_id="etl"} 5',
        rb'kafka_server_produce_byte_rate{client_id="\"etl\""} 6',
        rb'kafka_server_produce_byte_rate{client_id="a,b"} 7',
        rb'kafka_server_produce_byte_rate{client_id="\"a,b\""} 8',
        rb'kafka_server_produce_byte_rate{client_id="\njmx_scrape_duration_seconds "} 9',
    )
    sensors = table()
    as_it_is = {"etl": 5.0, '"etl"': 6.0, "a,b": 7.0, '"a,b"': 8.0, "\njmx_scrape_duration_seconds ": 9.0}
    for exporter, charged, refused in (
        (b"", as_it_is, 0),
        (b"jmx_scrape_duration_seconds 1\n", {"etl": 5.0, "a,b": 8.0}, 3),
    ):
        page = sensors.read(exporter + b"\n".join(lines) + b"\n")
        assert shown(sensors, page) == {("ANONYMOUS", name, PRODUCED): rate for name, rate in charged.items()}
        assert page.refused == refused


def test_counters_of_redpanda_are_totals_by_shard() -> None:
    line = 'redpanda_kafka_quotas_client_quota_throughput_by_entity{redpanda_quota_type="%s",%s} %d\n'
    names = 'redpanda_quota_user="a%%41b",redpanda_quota_client_id="\\"x\\""'.replace("%%", "%")
    sensors = table()
    page = sensors.read(
        "".join(
            line % one
            for one in (
                ("produce_quota", f'shard="0",{names}', 2**41),
                ("produce_quota", f'shard="1",{names}', 5),
                ("fetch_quota", names, 7),
                ("partition_mutation_quota", names, 9),
            )
        ).encode()
    )
    assert sensors.is_counted
    assert [(one.user, one.client_id) for one in sensors.clients] == [("a%41b", '"x"')] * 3
    assert (page.rates.tolist(), page.shown, page.refused) == ([2.0**41, 5.0, 7.0], 3, 0)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("NaN", "is not a rate"),
        ("+Inf", "is not a rate"),
        ("-Inf", "is not a rate"),
        ("-1.0", "is not a rate"),
        ("1e13", "is not a rate"),
        ("12,5", "is not a rate"),
    ],
)
def test_what_is_not_a_rate_charges_nothing_and_has_a_reason(value: str, reason: str) -> None:
    sensors = table()
    line = 'kafka_server_produce_byte_rate{client_id="c",user="u"} '
    page = sensors.read(f'{line}{value}\nkafka_server_fetch_byte_rate{{client_id="c",user="u"}} 7\n'.encode())
    assert shown(sensors, page) == {("u", "c", FETCHED): 7.0}
    assert (page.shown, page.refused) == (1, 1)
    assert page.reason == f"{line.strip()}: {value} {reason}"


@pytest.mark.parametrize(
    "labels",
    [
        b'client_id="c" user="u',
        b'client_id="c",user="\xff"',
        b'user="%ff",client_id=""',
        b'user="' + b"x" * 40_000 + b'"',
        b'client_id=c,user="u"',
    ],
)
def test_damaged_labels_are_refused_each_time_and_the_other_lines_are_read(labels: bytes) -> None:
    sensors = table()
    page = b'kafka_server_produce_byte_rate{%b} 9\nkafka_server_produce_byte_rate{user="u"} 5\n' % labels
    for _ in range(2):
        read = sensors.read(page)
        assert (read.refused, shown(sensors, read)) == (1, {("u", "", PRODUCED): 5.0})
        assert read.reason


@given(
    st.sampled_from(["rules", "own"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=30),
)
@example("own", '""')
@example("own", "\\n")
@example("own", "%41")
@example("own", "a{b} 5")
@example("own", "x" * 300)
def test_any_name_comes_back_as_it_was(form: str, name: str) -> None:
    sensors = table()
    page = sensors.read(exported(form, "Fetch", "byte-rate", name, name, 5.0))
    assert shown(sensors, page) == {(name, name, FETCHED): 5.0}


def test_kafka_encodes_users_and_jmx_quotes_client_ids() -> None:
    assert sanitized("CN=a b,O=*~") == "CN%3Da%20b%2CO%3D%2A%7E"
    assert jmx_quoted('a,"b\\*\n') == '"a,\\"b\\\\\\*\\n"'
    assert jmx_quoted("a b-c_d.e%") == "a b-c_d.e%"


def test_a_sensor_without_a_user_is_charged_to_kafkas_name_for_clients_that_did_not_sign_in() -> None:
    sensors = table()
    page = sensors.read(b'kafka_server_produce_byte_rate{client_id="c"} 5\n')
    assert shown(sensors, page) == {("ANONYMOUS", "c", PRODUCED): 5.0}


def test_sensors_keep_their_places_and_absent_ones_have_no_rate() -> None:
    sensors = table()
    line = b'kafka_server_produce_byte_rate{user="%b"} 5\n'
    sensors.read(line % b"a" + line % b"b")
    page = sensors.read(line % b"c" + line % b"b")
    assert page.rates.tolist() == [0.0, 5.0, 5.0]
    sensors.keep(np.array([False, True, True]))
    assert sensors.read(line % b"c" + line % b"a").rates.tolist() == [0.0, 5.0, 5.0]
    assert [client.user for client in sensors.clients] == ["b", "c", "a"]


def test_lines_that_are_always_new_are_read_and_not_remembered_for_ever() -> None:
    sensors = table()
    for number in range(8):
        lines = b"".join(b"other_%d 5 %d\n" % (at, number) for at in range(4_000))
        page = sensors.read(lines + b'kafka_server_produce_byte_rate{user="u"} 5 %d\n' % number)
        assert shown(sensors, page) == {("u", "", PRODUCED): 5.0}
    assert len(sensors._known) == 1


def test_pages_of_one_process_are_known_by_its_start() -> None:
    started = b'process_start_time_seconds{a="b"} 1.73e9\n'
    assert (table().read(PAGE + started).identity, table().read(PAGE).identity) == (b"1.73e9", None)
