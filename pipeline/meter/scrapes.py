r"""From a broker's metrics page to usage: names of metrics and labels, the page, the rates on it, bytes and ns.

Brokers publish their quota sensors as JMX beans, `kafka.server:type=Produce,user=…,client-id=…`, attribute `byte-rate`.
An exporter makes text of them, in one of these forms. Upper and lower case do not matter.

* `kafka_server_quota_byte_rate{resource="Produce",user="…",clientId="…"}`: the rules of
  `deploy/prometheus/jmx-quotas.yml`, which also serve Strimzi.
* `kafka_server_produce_byte_rate{user="…",client_id="…"}`: Kafka's own names. jmx_exporter without rules writes them
  (MSK's open monitoring), and Strimzi's `strimziMetricsReporter`.

A client chooses its client-id, so whatever a label holds, it is one name of one line:

* Values of labels are unescaped, and a user is decoded as Kafka encodes it (`Sanitizer`).
* JMX puts a client-id with other than `[\w-%. \t]` in quotes, and jmx_exporter shows them. Names lose their quotes
  only where jmx_exporter wrote the page: Strimzi's reporter shows a client-id as it is, which may itself have quotes.
* Rules of an exporter that match too much put several names into one label, or into the metric's name. Such a line
  belongs to no known client. It is refused, and the reason has what to write in its place.
* Two lines of one sensor are refused: which of them is right is not known.

**From rates to usage.** A sensor shows Kafka's `Rate` (`quota.rates`): at an instant t the usage of the last W(t)
seconds, divided by W(t). W is from N − 1 to N + 1 sample windows: 10 to 12 s with the defaults. It depends on when the
sensor's sample windows began, which no scrape shows. Two sums follow from rates, and the larger one is charged:

* **The mean.** Every byte is in the rate for 11 to 12 s, with a weight of 1 / W. So the integral of the rate over time
  is the usage, half a window late. It is 1.00 of it for a client that sends all the time, 1.05 for one with at most a
  request a second, and 1.09 for a burst of one second after a rest: while a rate rises W is 10 to 11 s, later it may be
  11 to 12 s. How many requests there were is not in the rate, so no rule is exact for all of them. `RISE_SECONDS` takes
  back what bursts have too much, and `MEAN_BIAS` puts what is left in the middle: ±2.5 %.
* **What is there at once.** At the first scrape after a burst the mean has charged nearly nothing of it, but the last
  12 s had 10.5 s times the rate, to 5 %, if the client rested before; if not, more. What was charged in these 12 s is
  taken off, and it is never further ahead of the mean than that.

The mean makes long-run sums right, the other one makes a violation begin soon.

After a gap (a target was away) at most one window is charged. What was used before it is unknown, and nothing is
invented for it.

**An example.** A client sends 1 MB at once, and nothing else. It is in the rate for 11 s. At the first scrape all of it
is charged, to 5 %, and nothing is charged again when the mean has caught up.

>>> usage = ScrapedUsage()
>>> usage.grow(1)
>>> for second, rate in [(0, 0.0), (2, 100_000.0), (4, 97_000.0), (6, 93_000.0), (8, 98_000.0), (10, 95_000.0)]:
...     usage.observe(np.array([rate]), 1_000 * second)
...     ends_ms, charged = usage.take(1_000 * second)
...     print(second, charged.ravel().tolist())
0 []
2 [525000, 525000]
4 [0, 0]
6 [0, 0]
8 [0, 0]
10 [0, 0]
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

import numpy as np

from pipeline.meter.usage_topic import Client, new_client
from quota.arrays import Flags, Floats, Ints
from schemas.usage import LARGEST_MEASURE

PRODUCED, FETCHED, REQUEST = range(3)
"""What a sensor measures: bytes, bytes, and percent of a thread."""

NS_PER_PERCENT: Final = 1e7
"""A percent of a thread for a second, in ns."""

NOT_SIGNED_IN: Final = "ANONYMOUS"
"""Kafka's name of a client that did not sign in. Sensors of a client-id alone have no user, and are charged to it."""

_RESOURCES: Final = {
    "produce": PRODUCED,
    "fetch": FETCHED,
    "request": REQUEST,
}
_OWN_NAMES: Final = {
    "kafka_server_produce_byte_rate": PRODUCED,
    "kafka_server_fetch_byte_rate": FETCHED,
    "kafka_server_request_request_time": REQUEST,
}
_OF_RULES: Final = {
    "kafka_server_quota_byte_rate": {PRODUCED, FETCHED},
    "kafka_server_quota_request_time": {REQUEST},
}
"""Names that only rules of jmx_exporter make."""
_OTHER_NAMES: Final = r"kafka_server_(?:quota_)?(?:produce|fetch|request)_(?:\w+_)?(?:byte_rate|request_time)"
"""Names that other rules make of quota sensors: with user and client-id as parts, or with other words."""
_NAME_PARTS: Final = re.compile(r"_(user|client_id)_")
OF_JMX_EXPORTER: Final = "jmx_scrape_duration_seconds"
"""Every version of jmx_exporter shows it."""
_LABELS: Final = {
    "user": "user",
    "client_id": "client_id",
    "clientid": "client_id",
    "resource": "resource",
    "type": "resource",
}
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?\s*')
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_PROCESS_START: Final = re.compile(rb"^process_start_time_seconds(?:\{.*\})? (\S+)", re.MULTILINE)
_NAMES: Final = "|".join((*_OWN_NAMES, *_OF_RULES, _OTHER_NAMES))
_LINE: Final = re.compile(rf"((?i:{_NAMES})(?:\{{.*\}})?)[ \t]+([^\s{{}}]+)(?:[ \t]+-?[0-9]+)?\s*".encode())
"""A line of a sensor: what comes before the value, and the value."""
_SEVERAL_NAMES: Final = re.compile(r", (?:user|client-id)=")
_PLAIN: Final = re.compile(r"[\w\-%. \t]*", re.ASCII)
_QUOTED: Final = re.compile(r'"((?:[^"*?\\\n]|\\["*?\\n])*)"')

QUOTA_PATTERNS: Final = {
    ("user", "client_id"): r"(?s)^kafka\.server<type=(Produce|Fetch|Request), user=([^,]+), client-id=(.+)>"
    r"<>(byte-rate|request-time): \S*$",
    ("user",): r"(?s)^kafka\.server<type=(Produce|Fetch|Request), user=([^,]+)><>(byte-rate|request-time): \S*$",
    ("client_id",): r"(?s)^kafka\.server<type=(Produce|Fetch|Request), client-id=(.+)><>(byte-rate|request-time): \S*$",
}
"""The rules of `deploy/prometheus/jmx-quotas.yml`, by the names in a sensor."""


_USE_OUR_RULES: Final = "Fix: put the rules of deploy/prometheus/jmx-quotas.yml before its other rules"


class Sensor(NamedTuple):
    """What a line shows: what is measured, and of whom."""

    measure: int
    user: str
    client_id: str


def sensor_of(series: str, is_of_jmx_exporter: bool = False) -> Sensor | None:
    """What a series shows; None if it is not of a client's quota.

    Args:
        series: The name of a metric, and its labels.
        is_of_jmx_exporter: Its names are as JMX writes them.

    Raises:
        ValueError: Of which client it is cannot be known. The text says why, and what to change.
    """
    name, _, text = series.partition("{")
    name, labels = name.lower(), _labels_of(text)
    measure = _OWN_NAMES.get(name)
    if measure is None and name not in _OF_RULES:
        _refuse_name(name, labels)
        return None
    _refuse_several_names(labels)
    if measure is None:
        measure = _RESOURCES.get(labels.get("resource", "").lower())
        if measure not in _OF_RULES[name]:
            return None
    user, client_id = labels.get("user", ""), labels.get("client_id", "")
    if is_of_jmx_exporter or name in _OF_RULES:
        user, client_id = _of_jmx(user, labels), _of_jmx(client_id, labels)
    user = unquote(user, errors="strict")
    if not user and not client_id:
        message = f"no label of it is known to be a user or client-id. {_USE_OUR_RULES}"
        raise ValueError(message)
    return Sensor(measure, user, client_id)


def _labels_of(text: str) -> dict[str, str]:
    """The values of the labels behind `{`, by their meaning; of those without one the last is at ""."""
    labels, end = {}, 0
    for match in _LABEL.finditer(text):
        if match.start() != end:
            break
        end = match.end()
        labels[_LABELS.get(match[1].lower(), "")] = _unescaped(match[2])
    if text and text[end:].strip() != "}":
        message = "its labels are damaged"
        raise ValueError(message)
    return labels


def _unescaped(value: str) -> str:
    r"""A label's value: `\n` is a new line, `\"` and `\\` are the second character. A name of JMX is written alike."""
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], value) if "\\" in value else value


def _of_jmx(value: str, labels: Mapping[str, str]) -> str:
    """The name that JMX writes so: in quotes (`ObjectName.quote`) if it has other than `_PLAIN`, else as it is."""
    if _PLAIN.fullmatch(value):
        return value
    quoted = _QUOTED.fullmatch(value)
    name = _unescaped(quoted[1]) if quoted else ""
    if _PLAIN.fullmatch(name):
        message = _of_a_rule("JMX would not write the name of its client so", labels)
        raise ValueError(message)
    return name


def _refuse_several_names(labels: Mapping[str, str]) -> None:
    """Raise ValueError if a label that can hold one word holds the next name of a bean, too."""
    for part in ("resource", "user"):
        if _SEVERAL_NAMES.search(labels.get(part, "")):
            message = _of_a_rule("a label of it holds several names", labels)
            raise ValueError(message)


def _of_a_rule(what: str, labels: Mapping[str, str]) -> str:
    """What is wrong with a line, and the line of the rules that made it so."""
    names = tuple(part for part in ("user", "client_id") if part in labels) or ("user", "client_id")
    return (
        f"{what}, so a rule of the exporter matches too much. Fix: give that rule the line pattern: "
        f"'{QUOTA_PATTERNS[names]}' (deploy/prometheus/jmx-quotas.yml has all three)"
    )


def _refuse_name(name: str, labels: Mapping[str, str]) -> None:
    """Raise ValueError if a metric that has another name than those that are known shows a sensor of a client."""
    if _NAME_PARTS.search(name):
        message = f"its exporter makes user and client-id parts of the metric's name. {_USE_OUR_RULES}"
        raise ValueError(message)
    if "user" in labels or "client_id" in labels:
        message = f"its metric is not known. {_USE_OUR_RULES}"
        raise ValueError(message)


def _has_line(page: bytes, name: str) -> bool:
    """Whether a line begins so. No client can make one: line ends in a label are escaped."""
    return page.startswith(name.encode()) or f"\n{name}".encode() in page


class Page(NamedTuple):
    """What one scrape has shown.

    Attributes:
        rates: Of every sensor that was ever seen and not forgotten, bytes or ns per second, float64[n].
        shown: How many of them were on the page.
        refused: Lines that could not be used.
        reason: Why, of the first of them; "" if there are none.
        identity: When the broker's process was started, as it is on the page; None if it is not.
    """

    rates: Floats
    shown: int
    refused: int
    reason: str
    identity: bytes | None


_NO_SENSOR: Final = -1


class SensorTable:
    """The sensors of one broker, by the lines that show them. One caller at a time."""

    def __init__(self, broker_id: str) -> None:
        self._broker_id = broker_id
        self._is_of_jmx_exporter = False
        # The lines of the last page: the place of the sensor, `_NO_SENSOR`, or why the line cannot be used.
        self._known: dict[bytes, int | str] = {}
        self._sensors: dict[Sensor, int] = {}
        self._client_at: dict[tuple[str, str], int] = {}
        self.clients: list[Client] = []
        self._places: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """The number of sensors."""
        return len(self._places)

    @property
    def places(self) -> Ints:
        """What each sensor measures, and the position of its client in `clients`, int64[n, 2]."""
        return np.array(self._places, np.int64).reshape(-1, 2)

    def read(self, page: bytes) -> Page:
        """The rates on a page; sensors that are not on it have 0. New ones are added at the end.

        A value that is not a number, is infinite, is negative or is above 2^40 a second counts as none; so do those of
        two lines of one sensor.
        """
        if self._is_of_jmx_exporter != _has_line(page, OF_JMX_EXPORTER):
            self._is_of_jmx_exporter = not self._is_of_jmx_exporter
            self._known = {}
        lines = [line for line in map(self._read_line, page.split(b"\n")) if line[0] != _NO_SENSOR]
        self._known = {series: place for place, series, _ in lines}
        counts, rates = Counter(place for place, _, _ in lines), np.zeros(len(self))
        shown, reasons = 0, list[str]()
        for place, series, text in lines:
            if isinstance(place, str):
                reasons.append(f"{_shown(series)}: {place}")
            elif counts[place] > 1:
                reasons.append(f"{_shown(series)}: another line has its client, too")
            else:
                per_second = _number(text) * (NS_PER_PERCENT if self._places[place][0] == REQUEST else 1.0)
                if 0 <= per_second <= LARGEST_MEASURE:
                    rates[place] = per_second
                    shown += 1
                else:
                    reasons.append(f"{_shown(series)}: {_shown(text)} is not a rate")
        started = _PROCESS_START.search(page)
        return Page(rates, shown, len(reasons), next(iter(reasons), ""), started[1] if started else None)

    def keep(self, kept: Flags) -> None:
        """Forget the sensors that are not kept, bool[n], and all lines. The others close the gaps in their order."""
        sensors = [key for key, place in self._sensors.items() if kept[place]]
        self._known, self._sensors, self._client_at, self.clients, self._places = {}, {}, {}, [], []
        for key in sensors:
            self._add(key)

    def _read_line(self, line: bytes) -> tuple[int | str, bytes, bytes]:
        """The place of a line's sensor, or why it cannot be used; what comes before its value, and the value."""
        # Most lines are those of the last page, with another value: what comes before the last space is known.
        series, _, text = line.rpartition(b" ")
        place = self._known.get(series)
        if place is not None:
            return place, series, text
        match = _LINE.fullmatch(line)
        if match is None:
            return _NO_SENSOR, series, text
        place = self._known.get(match[1])
        return self._place_of(match[1]) if place is None else place, match[1], match[2]

    def _place_of(self, series: bytes) -> int | str:
        try:
            key = sensor_of(series.decode(), self._is_of_jmx_exporter)
            return _NO_SENSOR if key is None else self._add(key)
        except ValueError as exc:
            return str(exc).splitlines()[0]

    def _add(self, key: Sensor) -> int:
        known = self._sensors.get(key)
        if known is not None:
            return known
        measure, user, client_id = key
        client = key[1:]
        client_at = self._client_at.get(client)
        if client_at is None:
            self.clients.append(new_client(user or NOT_SIGNED_IN, client_id, self._broker_id))
            client_at = self._client_at[client] = len(self.clients) - 1
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


# What scraped rates stand for: usage by the second.

MEAN_BIAS: Final = 1.02
"""The mean, divided by the usage: the middle of what clients have."""

RISE_SECONDS: Final = 0.5
"""So many seconds of what a rate has risen by are usage that the mean would charge twice."""

NUM_SAMPLES: Final = 11
SAMPLE_WINDOW_MS: Final = 1000
"""Kafka's defaults: `quota.window.num` and `quota.window.size.seconds`."""

_YOUNG_SECONDS: Final = (NUM_SAMPLES - 0.5) * SAMPLE_WINDOW_MS / 1000
_LONGEST_MS: Final = (NUM_SAMPLES + 1) * SAMPLE_WINDOW_MS

MOST_SECONDS: Final = 60
"""Usage that waits to be taken is dated in as many seconds at most."""

_SECOND_MS: Final = 1000


class ScrapedUsage:
    """The usage of the sensors of one broker, from their rates. Pure; one caller at a time.

    A sensor is a position in the arrays. New ones are added at the end.
    """

    window_ms = NUM_SAMPLES * SAMPLE_WINDOW_MS
    """What is charged after a gap, at most."""

    def __init__(self) -> None:
        self._at_ms: int | None = None
        self._begun_ms = 0
        self._rates = np.zeros(0)
        # Sums since what was taken last. Below 0: what the mean, or an earlier scrape, is behind.
        self._mean = np.zeros(0)
        self._charged = np.zeros(0)
        self._history: list[tuple[int, Floats]] = []

    def __len__(self) -> int:
        """The number of sensors."""
        return len(self._rates)

    @property
    def is_settled(self) -> Flags:
        """Whether the rate of a sensor is 0 and nothing of its usage is left to be charged, bool[n]."""
        settled: Flags = (self._rates == 0) & (self._charged < 1)
        return settled & (self._history[0][1] == self._charged) if self._history else settled

    def grow(self, count: int) -> None:
        """Make room for this many sensors. The new ones had no usage until the last scrape."""
        if count <= len(self):
            return
        room = (0, count - len(self))
        self._rates, self._mean, self._charged = (np.pad(one, room) for one in (self._rates, self._mean, self._charged))
        self._history = [(at_ms, np.pad(charged, room)) for at_ms, charged in self._history]

    def keep(self, kept: Flags) -> None:
        """Forget the sensors that are not kept, bool[n]. The others close the gaps in their order."""
        self._rates, self._mean, self._charged = self._rates[kept], self._mean[kept], self._charged[kept]
        self._history = [(at_ms, charged[kept]) for at_ms, charged in self._history]

    def observe(self, rates: Floats, at_ms: int) -> None:
        """Rates were seen.

        Args:
            rates: per second, of every sensor, float64[n], finite and not negative; 0 where a sensor is gone.
            at_ms: the instant, on a clock that never steps. One that is not after the last one changes nothing.
        """
        if self._at_ms is None:
            self._begun_ms = at_ms
            self._begin(rates, at_ms)
            return
        since_ms = at_ms - self._at_ms
        if since_ms <= 0:
            return
        # A rate stands for half the time to the scrapes around it. After a gap the window is all that is known.
        seconds = min(since_ms, self.window_ms) / 1000
        rise = np.maximum(rates - self._rates, 0)
        self._mean += ((self._rates + rates) * (seconds / 2) - rise * RISE_SECONDS) / MEAN_BIAS
        self._charged = np.maximum(self._charged, self._mean)
        if since_ms > self.window_ms:
            self._begun_ms = max(self._begun_ms, at_ms - self.window_ms)
            self._begin(rates, at_ms)
            return
        # Above the mean by no more than the window, or what is charged too early would add up.
        before = np.minimum(self._charged_before(at_ms - _LONGEST_MS), self._mean)
        self._charged = np.maximum(self._charged, before + rates * _YOUNG_SECONDS)
        self._rates, self._at_ms = rates, at_ms
        self._history.append((at_ms, self._charged))

    def take(self, at_ms: int) -> tuple[Ints, Ints]:
        """The usage since the last time, by the second, in whole units. What is left is carried.

        Args:
            at_ms: the instant of the last `observe` as the wall clock has it: seconds are its own.

        Returns:
            The last millisecond of each second, int64[m], ascending, none after `at_ms`; and the usage of each sensor
            in each of these seconds, int64[m, n]. m is 0 until a second is over.
        """
        span_ms = 0 if self._at_ms is None else min(self._at_ms - self._begun_ms, MOST_SECONDS * _SECOND_MS)
        start_ms = at_ms - span_ms
        ends_ms = np.arange(start_ms // _SECOND_MS + 1, at_ms // _SECOND_MS + 1, dtype=np.int64) * _SECOND_MS
        if self._at_ms is None or not len(ends_ms):
            return ends_ms[:0], np.zeros((0, len(self)), np.int64)
        shares = (ends_ms - start_ms) / span_ms
        until = np.floor(self._charged * shares[:, None])
        usage = np.diff(until, axis=0, prepend=0.0).astype(np.int64)
        self._begun_ms = self._at_ms - (at_ms - int(ends_ms[-1]))
        taken = until[-1]
        self._charged, self._mean = self._charged - taken, self._mean - taken
        self._history = [(then_ms, charged - taken) for then_ms, charged in self._history]
        return ends_ms - 1, usage

    def _begin(self, rates: Floats, at_ms: int) -> None:
        """Begin anew: what the windows hold now may be from before, as much as the longest one can hold."""
        self._rates, self._at_ms = rates, at_ms
        before = self._charged - rates * (_LONGEST_MS / 1000)
        self._history = [(at_ms - _LONGEST_MS, before), (at_ms, self._charged)]

    def _charged_before(self, then_ms: int) -> Floats:
        """What was charged at the last scrape that was not later. Earlier ones are forgotten."""
        while len(self._history) > 1 and self._history[1][0] <= then_ms:
            del self._history[0]
        return self._history[0][1]
