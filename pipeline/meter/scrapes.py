"""What a broker's metrics page shows of its quota sensors: names of metrics and labels, the page, the rates on it.

Brokers publish their quota sensors as JMX beans, `kafka.server:type=Produce,user=…,client-id=…`, attribute `byte-rate`.
An exporter makes text of them, in one of these forms. Upper and lower case do not matter.

* `kafka_server_quota_byte_rate{resource="Produce",user="…",clientId="…"}`: the example rules of jmx_exporter for KRaft,
  and those of `deploy/prometheus/jmx-quotas.yml`, which also serve Strimzi.
* `kafka_server_produce_byte_rate{user="…",client_id="…"}`: Kafka's own names. jmx_exporter without rules writes them
  (MSK's open monitoring), and Strimzi's `strimziMetricsReporter`.

`NameMap` has others. Only these lines are read. Values of labels are unescaped, unquoted as JMX quotes them, and a user
is decoded as Kafka encodes it (`Sanitizer`), so that names are those of the request log.

A client chooses its client-id. Whatever a label holds, it is one name of one line.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import unquote

import numpy as np

from pipeline.meter.usage_messages import Client, new_client
from quota.arrays import Flags, Floats, Ints
from schemas.usage import LARGEST_MEASURE

PRODUCED, FETCHED, REQUEST = range(3)
"""What a sensor measures: bytes, bytes, and percent of a thread."""

NS_PER_PERCENT: Final = 1e7
"""A percent of a thread for a second, in ns."""

NOT_SIGNED_IN: Final = "ANONYMOUS"
"""Kafka's name of a client that did not sign in. Sensors of a client-id alone have no user, and are charged to it."""

_RESOURCES: Final = {"produce": PRODUCED, "fetch": FETCHED, "request": REQUEST}
_OWN_NAMES: Final = {
    "kafka_server_produce_byte_rate": PRODUCED,
    "kafka_server_fetch_byte_rate": FETCHED,
    "kafka_server_request_request_time": REQUEST,
}
_SHARED_NAMES: Final = {
    "kafka_server_quota_byte_rate": {PRODUCED, FETCHED},
    "kafka_server_quota_request_time": {REQUEST},
}
_LABELS: Final = {
    "user": "user",
    "client_id": "client_id",
    "clientid": "client_id",
    "resource": "resource",
    "type": "resource",
}
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?\s*')
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_PROCESS_START: Final = re.compile(rb"process_start_time_seconds(?:\{.*\})?")
_MAPPED: Final = {"produced_bytes": PRODUCED, "fetched_bytes": FETCHED, "request_time": REQUEST}


@dataclass(frozen=True, slots=True)
class NameMap:
    """How metrics and labels are called.

    Attributes:
        metrics: Name of a metric, in lower case, to what it measures.
        labels: Name of a label, in lower case, to `user`, `client_id` or `resource`.
    """

    metrics: Mapping[str, int] = field(default_factory=lambda: dict(_OWN_NAMES))
    labels: Mapping[str, str] = field(default_factory=lambda: dict(_LABELS))

    @classmethod
    def of(cls, pairs: Iterable[str]) -> "NameMap":
        """The known names and others.

        Args:
            pairs: `METRIC=produced_bytes`, `METRIC=fetched_bytes`, `METRIC=request_time`, `LABEL=user`,
                `LABEL=client_id`, `LABEL=resource`.

        Raises:
            ValueError: One of them is none of these.
        """
        metrics, labels = dict(_OWN_NAMES), dict(_LABELS)
        for pair in pairs:
            name, _, meaning = pair.partition("=")
            if not _NAME.fullmatch(name) or meaning not in {*_MAPPED, "user", "client_id", "resource"}:
                message = f"{pair!r} is not NAME=MEANING; meanings: {', '.join(_MAPPED)}, user, client_id, resource"
                raise ValueError(message)
            if meaning in _MAPPED:
                metrics[name.lower()] = _MAPPED[meaning]
            else:
                labels[name.lower()] = meaning
        return cls(metrics, labels)

    @property
    def pattern(self) -> re.Pattern[bytes]:
        """A line of a sensor: what comes before the value, and the value."""
        names = "|".join(map(re.escape, (*self.metrics, *_SHARED_NAMES)))
        return re.compile(rf"((?i:{names})\{{.*\}})[ \t]+([^\s{{}}]+)(?:[ \t]+-?[0-9]+)?\s*".encode())

    def sensor_of(self, series: str) -> tuple[int, str, str] | None:
        """What a series measures, its user and its client-id; None if it is not one of a client's quota.

        Args:
            series: Name and labels, as they are on the page.

        Raises:
            ValueError: The labels are damaged.
        """
        name, _, text = series.partition("{")
        labels, end = {}, 0
        for match in _LABEL.finditer(text):
            if match.start() != end:
                break
            end = match.end()
            labels[self.labels.get(match[1].lower(), "")] = _unescaped(match[2])
        if text[end:].strip() != "}":
            message = "its labels are damaged"
            raise ValueError(message)
        measure = self.metrics.get(name.lower())
        if measure is None:
            measure = _RESOURCES.get(labels.get("resource", "").lower())
            if measure not in _SHARED_NAMES[name.lower()]:
                return None
        user, client_id = (_unquoted(labels.get(part, "")) for part in ("user", "client_id"))
        return (measure, unquote(user, errors="strict"), client_id) if user or client_id else None


def _unescaped(value: str) -> str:
    r"""A label's value: `\n` is a new line, `\"` and `\\` are the second character."""
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], value) if "\\" in value else value


def _unquoted(value: str) -> str:
    r"""A value of a JMX name: `ObjectName.quote` puts it in quotes if it has other than `[\w-%. \t]`."""
    is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
    return _unescaped(value[1:-1]) if is_quoted else value


class Page(NamedTuple):
    """What one scrape has shown.

    Attributes:
        rates: Of every sensor that was ever seen and not forgotten, bytes or ns per second, float64[n].
        shown: How many of them were on the page.
        refused: Lines that could not be used.
        reason: Why, of the first of them; "" if there are none.
        identity: When the broker's process was started, as it is on the page; None if it is not.
        digest: Without an identity: equal on pages with the same sensors and rates; None if all rates are 0.
    """

    rates: Floats
    shown: int
    refused: int
    reason: str
    identity: bytes | None
    digest: int | None


# In place of a sensor: a line of something else, one that cannot be used, the start of the process, one that is new.
_NONE: Final = -1
_REFUSED: Final = -2
_STARTED: Final = -3
_NEW: Final = -4
_LINES_KEPT: Final = 10_000
"""Lines that are remembered beyond two pages: some have a time after their value, and so are always new."""


class SensorTable:
    """The sensors of one broker, by the lines that show them. One caller at a time.

    Args:
        broker_id: Written to every event.
    """

    def __init__(self, broker_id: str, names: NameMap) -> None:
        self._broker_id = broker_id
        self._names = names
        self._pattern = names.pattern
        self._at: dict[bytes, int] = {}
        self._reasons: dict[bytes, str] = {}
        self._sensors: dict[tuple[int, str, str], int] = {}
        self._client_at: dict[tuple[str, str], int] = {}
        self.clients: list[Client] = []
        self._places: list[tuple[int, int]] = []
        self._array = np.zeros((0, 2), np.int64)

    def __len__(self) -> int:
        """The number of sensors."""
        return len(self._places)

    @property
    def places(self) -> Ints:
        """Of each sensor what it measures, and the position of its client in `clients`, int64[n, 2]."""
        if len(self._array) != len(self._places):
            self._array = np.array(self._places, np.int64).reshape(-1, 2)
        return self._array

    def read(self, page: bytes) -> Page:
        """The rates on a page; sensors that are not on it have 0. New ones are added at the end.

        A value that is not a number, is infinite, is negative or is above 2^40 a second counts as none.
        """
        # Most lines are those of the last page, with another value: what comes before the last space is known.
        found = [line.rpartition(b" ") for line in page.split(b"\n")]
        at = self._at
        places = [at.get(one[0], _NEW) for one in found]
        if _NEW in places:
            for line in [number for number, place in enumerate(places) if place == _NEW]:
                found[line], places[line] = self._look(b"".join(found[line]))
        of_lines = np.array(places, np.int64)
        of_sensors = np.flatnonzero(of_lines >= 0)
        ids = of_lines[of_sensors]
        values = np.array([_number(found[line][2]) for line in of_sensors.tolist()], np.float64)
        per_second = np.where(self.places[ids, 0] == REQUEST, values * NS_PER_PERCENT, values)
        is_good = (per_second >= 0) & (per_second <= LARGEST_MEASURE)
        rates = np.zeros(len(self))
        rates[ids[is_good]] = per_second[is_good]
        damaged = np.flatnonzero(of_lines == _REFUSED).tolist()
        bad = [*damaged, *of_sensors[~is_good].tolist()]
        if len(at) > 2 * len(found) + _LINES_KEPT:
            self._at = dict(zip((one[0] for one in found), places, strict=True))
            self._reasons = {series: reason for series, reason in self._reasons.items() if series in self._at}
        started = found[places.index(_STARTED)][2] if _STARTED in places else None
        is_alike = started is None and bool(rates.any())
        return Page(
            rates,
            shown=int(is_good.sum()),
            refused=len(bad),
            reason=self._reason(found[bad[0]][0], found[bad[0]][2]) if bad else "",
            identity=started,
            digest=hash(frozenset(found[line] for line in of_sensors.tolist())) if is_alike else None,
        )

    def keep(self, kept: Flags) -> None:
        """Forget the sensors that are not kept, bool[n], and all lines. The others close the gaps in their order."""
        sensors = [key for key, place in self._sensors.items() if kept[place]]
        self._at, self._reasons, self._sensors, self._client_at = {}, {}, {}, {}
        self.clients, self._places = [], []
        self._array = self._array[:0]
        for key in sensors:
            self._add(key)

    def _reason(self, series: bytes, text: bytes) -> str:
        return f"{_shown(series)}: {self._reasons.get(series) or f'{_shown(text)} is not a rate'}"

    def _look(self, line: bytes) -> tuple[tuple[bytes, bytes, bytes], int]:
        """A line that is new: its series, a blank and its value; and its place, which is remembered."""
        series, blank, text = line.rpartition(b" ")
        match = self._pattern.fullmatch(line)
        if match is None:
            self._at[series] = _STARTED if _PROCESS_START.fullmatch(series) else _NONE
            return (series, blank, text), self._at[series]
        place = self._at.get(match[1])
        if place is None:
            try:
                key = self._names.sensor_of(match[1].decode())
                place = _NONE if key is None else self._add(key)
            except ValueError as exc:
                self._reasons[match[1]] = str(exc).splitlines()[0]
                place = _REFUSED
            self._at[match[1]] = place
        return (match[1], b" ", match[2]), place

    def _add(self, key: tuple[int, str, str]) -> int:
        known = self._sensors.get(key)
        if known is not None:
            return known
        measure, user, client_id = key
        client_at = self._client_at.get((user, client_id))
        if client_at is None:
            self.clients.append(new_client(f"User:{user or NOT_SIGNED_IN}", client_id, self._broker_id))
            client_at = self._client_at[user, client_id] = len(self.clients) - 1
        self._places.append((measure, client_at))
        self._sensors[key] = len(self._places) - 1
        return self._sensors[key]


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _shown(text: bytes) -> str:
    return ascii(text[:120].decode("utf-8", "replace"))[1:-1]
