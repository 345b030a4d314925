"""What a broker's metrics page shows of its quota sensors: names of metrics and labels, the page, the rates on it.

Brokers publish their quota sensors as JMX beans, `kafka.server:type=Produce,user=…,client-id=…`, attribute `byte-rate`.
An exporter makes text of them, in one of these forms. Upper and lower case do not matter.

* `kafka_server_quota_byte_rate{resource="Produce",user="…",clientId="…"}`: the rules of
  `deploy/prometheus/jmx-quotas.yml`, which also serve Strimzi.
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
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.meter.usage_messages import Client, client_columns, new_client
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
_MEANINGS: Final = ("user", "client_id", "resource", "broker_id")


@dataclass(frozen=True, slots=True)
class NameMap:
    """How metrics and labels are called.

    Attributes:
        metrics: Name of a metric, in lower case, to what it measures.
        labels: Name of a label, in lower case, to `user`, `client_id`, `resource` or `broker_id`.
    """

    metrics: Mapping[str, int] = field(default_factory=lambda: dict(_OWN_NAMES))
    labels: Mapping[str, str] = field(default_factory=lambda: dict(_LABELS))

    @classmethod
    def of(cls, pairs: Iterable[str]) -> "NameMap":
        """The known names and others.

        Args:
            pairs: `METRIC=produced_bytes`, `METRIC=fetched_bytes`, `METRIC=request_time`, `LABEL=user`,
                `LABEL=client_id`, `LABEL=resource`, `LABEL=broker_id`.

        Raises:
            ValueError: One of them is none of these.
        """
        metrics, labels = dict(_OWN_NAMES), dict(_LABELS)
        for pair in pairs:
            name, _, meaning = pair.partition("=")
            if not _NAME.fullmatch(name) or meaning not in {*_MAPPED, *_MEANINGS}:
                message = f"{pair!r} is not NAME=MEANING; meanings: {', '.join((*_MAPPED, *_MEANINGS))}"
                raise ValueError(message)
            if meaning in _MAPPED:
                metrics[name.lower()] = _MAPPED[meaning]
            else:
                labels[name.lower()] = meaning
        return cls(metrics, labels)

    @property
    def series(self) -> tuple[str, ...]:
        """The names of all metrics with a sensor, in lower case."""
        return (*self.metrics, *_SHARED_NAMES)

    @property
    def pattern(self) -> re.Pattern[bytes]:
        """A line of a sensor: what comes before the value, and the value."""
        names = "|".join(map(re.escape, self.series))
        return re.compile(rf"((?i:{names})\{{.*\}})[ \t]+([^\s{{}}]+)(?:[ \t]+-?[0-9]+)?\s*".encode())

    def sensor_of(self, series: str) -> tuple[int, str, str] | None:
        """What a series measures, its user and its client-id; None if it is not one of a client's quota.

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


# A rule that matches every bean, before those of quotas, as jmx_exporter's own example for KRaft has it.
_WITHOUT_LABELS: Final = re.compile(
    rb"^kafka_server_(?:produce|fetch|request)_\w+_(?:byte_rate|request_time)[ \t]", re.IGNORECASE | re.MULTILINE
)


def is_without_labels(page: bytes) -> bool:
    """Whether a page has quota sensors whose user and client-id are parts of the metric's name."""
    return _WITHOUT_LABELS.search(page) is not None


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
    """The sensors of one broker, by the lines that show them. One caller at a time."""

    def __init__(self, broker_id: str, names: NameMap) -> None:
        self._broker_id = broker_id
        self._names = names
        self._pattern = names.pattern
        self._at: dict[bytes, int] = {}
        # Of all lines in `_at`; and of the last page, if all its lines were known.
        self._known: tuple[pa.Array, Ints] | None = None
        self._last: tuple[pa.Array, Ints] | None = None
        self._reasons: dict[bytes, str] = {}
        self._sensors: dict[tuple[int, str, str], int] = {}
        self._client_at: dict[tuple[str, str], int] = {}
        self.clients: list[Client] = []
        self._places: list[tuple[int, int]] = []
        self._array = np.zeros((0, 2), np.int64)
        self._names_of_clients: pa.Table | None = None

    def __len__(self) -> int:
        """The number of sensors."""
        return len(self._places)

    @property
    def places(self) -> Ints:
        """Of each sensor what it measures, and the position of its client in `clients`, int64[n, 2]."""
        if len(self._array) != len(self._places):
            self._array = np.array(self._places, np.int64).reshape(-1, 2)
        return self._array

    @property
    def client_names(self) -> pa.Table:
        """The clients, in their order, as `usage_messages.client_columns`."""
        if self._names_of_clients is None or self._names_of_clients.num_rows != len(self.clients):
            self._names_of_clients = client_columns(self.clients)
        return self._names_of_clients

    def read(self, page: bytes) -> Page:
        """The rates on a page; sensors that are not on it have 0. New ones are added at the end.

        A value that is not a number, is infinite, is negative or is above 2^40 a second counts as none.
        """
        # Most lines are those of the last page, with another value: what comes before the last space is known.
        lines = pc.split_pattern(pa.array([page], pa.binary()), "\n").flatten()
        parts = pc.split_pattern(lines, " ", max_splits=1, reverse=True)
        texts, ends = parts.flatten(), parts.offsets.to_numpy()
        places = self._places_of(texts.take(pa.array(ends[:-1])))
        looked: dict[int, tuple[bytes, bytes]] = {}
        for line in np.flatnonzero(places == _NEW).tolist():
            series, text, places[line] = self._look(lines[line].as_py())
            looked[line] = series, text
        of_sensors = np.flatnonzero(places >= 0)
        ids = places[of_sensors]
        values = _numbers(texts.take(pa.array(ends[1:][of_sensors] - 1)))
        for line in looked:
            values[of_sensors == line] = _number(looked[line][1])
        per_second = np.where(self.places[ids, 0] == REQUEST, values * NS_PER_PERCENT, values)
        is_good = (per_second >= 0) & (per_second <= LARGEST_MEASURE)
        rates = np.zeros(len(self))
        rates[ids[is_good]] = per_second[is_good]

        def line_of(line: int) -> tuple[bytes, bytes]:
            return looked.get(line) or (texts[ends[line]].as_py(), texts[ends[line + 1] - 1].as_py())

        bad = [*np.flatnonzero(places == _REFUSED).tolist(), *of_sensors[~is_good].tolist()]
        if len(self._at) > 2 * len(places) + _LINES_KEPT:
            self._at, self._known = {line_of(line)[0]: place for line, place in enumerate(places.tolist())}, None
            self._reasons = {series: reason for series, reason in self._reasons.items() if series in self._at}
        started = np.flatnonzero(places == _STARTED).tolist()
        return Page(
            rates,
            shown=int(is_good.sum()),
            refused=len(bad),
            reason=self._reason(*line_of(bad[0])) if bad else "",
            identity=line_of(started[0])[1] if started else None,
            digest=None if started else self._digest(rates),
        )

    def keep(self, kept: Flags) -> None:
        """Forget the sensors that are not kept, bool[n], and all lines. The others close the gaps in their order."""
        sensors = [key for key, place in self._sensors.items() if kept[place]]
        self._at, self._reasons, self._sensors, self._client_at, self._known = {}, {}, {}, {}, None
        self.clients, self._places = [], []
        self._array, self._names_of_clients, self._last = self._array[:0], None, None
        for key in sensors:
            self._add(key)

    def _places_of(self, series: pa.Array) -> Ints:
        if self._last is not None and series.equals(self._last[0]):
            return self._last[1]
        if self._known is None:
            # The last one is for index -1: a line that is not known.
            places = np.array([*self._at.values(), _NEW], np.int64)
            self._known = pa.array(self._at, pa.binary()), places
        known, places = self._known
        found: Ints = places[pc.index_in(series, value_set=known).fill_null(-1).to_numpy()]
        self._last = None if _NEW in found else (series, found)
        return found

    def _digest(self, rates: Floats) -> int | None:
        """The same for two pages on which the same clients have the same rates; None if all are 0."""
        used = np.flatnonzero(rates)
        if not len(used):
            return None
        sensors = [(self.clients[at].number, measure) for measure, at in self.places[used].tolist()]
        return hash(frozenset(zip(sensors, rates[used].tolist(), strict=True)))

    def _reason(self, series: bytes, text: bytes) -> str:
        return f"{_shown(series)}: {self._reasons.get(series) or f'{_shown(text)} is not a rate'}"

    def _look(self, line: bytes) -> tuple[bytes, bytes, int]:
        """A line that is new: its series, its value, and its place, which is remembered."""
        self._known = None
        match = self._pattern.fullmatch(line)
        if match is None:
            series, blank, text = line.rpartition(b" ")
            series = series if blank else line
            self._at[series] = _STARTED if _PROCESS_START.fullmatch(series) else _NONE
            return series, text, self._at[series]
        place = self._at.get(match[1])
        if place is None:
            try:
                key = self._names.sensor_of(match[1].decode())
                place = _NONE if key is None else self._add(key)
            except ValueError as exc:
                self._reasons[match[1]] = str(exc).splitlines()[0]
                place = _REFUSED
            self._at[match[1]] = place
        return match[1], match[2], place

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


def _numbers(texts: pa.Array) -> Floats:
    try:
        return np.array(texts.cast(pa.float64()), np.float64)
    except pa.ArrowInvalid:
        return np.array([_number(text) for text in texts.to_pylist()], np.float64)


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _shown(text: bytes) -> str:
    return ascii(text[:120].decode("utf-8", "replace"))[1:-1]
