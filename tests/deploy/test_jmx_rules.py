"""The rules for jmx_exporter: its matching, in a few lines, and what the meter makes of the names."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from pipeline.meter.scrapes import NameMap
from tests.deploy.commands import DEPLOY

FILE: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "jmx-quotas.yml").read_text("utf-8"))


# Of jmx_exporter's example for KRaft, where it comes before the rules for quotas.
GENERAL: dict[str, Any] = {"pattern": "kafka.server<type=(.+)><>([a-z-]+)", "name": "kafka_server_$1_$2", "labels": {}}


def exported(bean: str, rules: Sequence[dict[str, Any]] = FILE["rules"]) -> str | None:
    """The series that the exporter makes of a bean and its attribute: the first rule that matches names it."""
    for rule in rules:
        match = re.search(rule["pattern"], bean)
        if match is not None:
            labels = ",".join(f'{name}="{_filled(value, match)}"' for name, value in rule["labels"].items())
            name = re.sub("[^a-zA-Z0-9_]", "_", _filled(rule["name"], match)).lower()
            return f"{name}{{{labels}}}"
    return None


def _filled(text: str, match: re.Match[str]) -> str:
    return re.sub(r"\$(\d)", lambda number: match[int(number[1])], text)


@pytest.mark.parametrize(
    ("bean", "sensor"),
    [
        ("type=Produce, user=alice, client-id=etl><>byte-rate", (0, "alice", "etl")),
        ("type=Fetch, user=a%20b, client-id=x, user=y><>byte-rate", (1, "a b", "x, user=y")),
        ("type=Request, user=alice><>request-time", (2, "alice", "")),
        ("type=Produce, client-id=a><>byte-rate><>byte-rate", (0, "", "a><>byte-rate")),
        ("type=Produce, user=alice, client-id=etl><>throttle-time", None),
        ("type=Request><>exempt-request-time", None),
        ("type=ControllerMutation, user=alice><>tokens", None),
    ],
)
def test_the_meter_reads_what_the_rules_show(bean: str, sensor: tuple[int, str, str] | None) -> None:
    series = exported(f"kafka.server<{bean}")
    assert (None if series is None else NameMap().sensor_of(series)) == sensor


def test_a_general_rule_before_them_takes_the_labels_away_and_one_behind_them_does_not() -> None:
    bean = "kafka.server<type=Produce, user=alice, client-id=etl><>byte-rate"
    names = NameMap()
    before, behind = (exported(bean, rules) or "" for rules in ([GENERAL, *FILE["rules"]], [*FILE["rules"], GENERAL]))
    assert names.pattern.fullmatch(f"{before} 1.0".encode()) is None
    assert names.pattern.fullmatch(f"{behind} 1.0".encode()) is not None
    assert names.sensor_of(behind) == (0, "alice", "etl")


def test_no_other_bean_is_asked() -> None:
    assert FILE["includeObjectNames"] == [f"kafka.server:type={name},*" for name in ("Produce", "Fetch", "Request")]
