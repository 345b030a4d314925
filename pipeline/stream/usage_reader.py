"""The reader of usage: messages in; summed usage, dead letters and counts out.

`read_usage` is called by the driver for small batches, and by Spark's executors for large ones (`query`). A message
is one JSON object or an array of objects. What is JSON is decided here, and what is a usage event by the model
`UsageEvent`:

* JSON is that of RFC 8259, with at most `MOST_LEVELS` nested levels. Anything else is one dead letter.
* Each element of an array is taken or refused by itself. An element with bytes that are not UTF-8 is refused.
* Of a name that is there twice in an object, the last member counts. Unknown names are ignored.
* A number is an integer if it is written without a fraction and without an exponent. A null counts as missing.

Messages are read in two steps. msgspec decodes good messages of known fields: most of them, and quickly. It never
decides that something is refused: what it does not take is read by `_read_with_causes`, which decides. What both take
they must read alike; the fuzz test compares each of them with a model that knows neither.
"""

import gc
import json
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from pipeline.stream.usage_columns import (
    COUNTED,
    EVENT_SCHEMA,
    CollectedBatch,
    DeadLetter,
    EventTimes,
    ReadingRules,
    Refused,
    Times,
    append_times,
    letters_of_elements,
    merge_batches,
    part_of_batch,
    too_old,
)
from schemas.usage import LARGEST_NAME_BYTES, UsageEvent

MOST_LEVELS: Final = 100
"""The most nested levels of a message, inclusive; an array of usage events has two."""
NO_JSON: Final = f"value must be JSON, of at most {MOST_LEVELS} nested levels"
NO_OBJECTS: Final = "value must be a JSON object or an array of objects"
NO_OBJECT: Final = "element must be a JSON object"
NO_UTF8: Final = "value must be UTF-8"

MESSAGE_SCHEMA: Final = pa.schema(
    {
        "value": pa.binary(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "appended_at_ms": pa.int64(),
    }
)
"""The messages of the topic that are read: in any order, each once."""

BYTES_AT_ONCE: Final = 4_194_304
"""Messages of so many bytes are read at once: some 30 000 events in JSON, 20 MB as objects."""
# Arrow groups many rows at once quicker than few rows often; so many take 40 MB.
_ROWS_AT_ONCE: Final = 262_144
PART: Final = "part BINARY, size_bytes BIGINT, large_count BIGINT"
"""What was read of a partition, compressed, its size before, and the number of messages that were too large."""
_CODEC: Final = "lz4"
_LONGEST_NUMBER: Final = 40
_LARGEST_BIGINT: Final = 2**63 - 1
_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)
_FIELDS: Final = tuple(UsageEvent.model_fields)


def from_records(records: pa.Table) -> pa.Table:
    """Messages of Kafka records, as Arrow has them from Spark: `query.RAW_COLUMNS` in any order."""
    appended_at_ms = pc.divide(records["timestamp"].cast(pa.int64()), 1000)  # Spark's are in microseconds
    return records.append_column("appended_at_ms", appended_at_ms).select(MESSAGE_SCHEMA.names).cast(MESSAGE_SCHEMA)


def without_large(messages: pa.Table, most_bytes: int) -> tuple[pa.Table, int]:
    """The messages of `MESSAGE_SCHEMA` whose value has at most so many bytes, or is null; and how many others."""
    is_large = pc.fill_null(pc.greater(pc.binary_length(messages["value"]), most_bytes), False)
    large_count = int(pc.sum(is_large).as_py() or 0)
    return messages.filter(pc.invert(is_large)) if large_count else messages, large_count


def read_usage(messages: pa.Table, rules: ReadingRules) -> CollectedBatch:
    """Read messages of `MESSAGE_SCHEMA`, and sum their usage.

    In memory there are at a time the events of `BYTES_AT_ONCE`, and the sums.
    """
    found = _Found()
    found.add(messages, rules)
    return found.batch()


def read_partition(batches: Iterable[pa.RecordBatch], rules: ReadingRules, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Do what `read_usage` does with the records of a partition `without_large`, on an executor; one row of `PART`.

    Spark copies it several times. So it is compressed: the sums of 10 000 clients take 0.5 MB, not 1.2.
    """
    found, all_large_count = _Found(), 0
    for batch in batches:
        messages, large_count = without_large(from_records(pa.Table.from_batches([batch])), most_bytes)
        found.add(messages, rules)
        all_large_count += large_count
    content = pickle.dumps(found.batch())
    part = pa.compress(content, codec=_CODEC, asbytes=True)
    yield pa.RecordBatch.from_pylist([{"part": part, "size_bytes": len(content), "large_count": all_large_count}])


def from_partitions(rows: pa.Table) -> tuple[CollectedBatch, int]:
    """What all partitions hold, and their number of large messages, of the rows of `read_partition`."""
    parts = zip(rows["part"].to_pylist(), rows["size_bytes"].to_pylist(), strict=True)
    contents = (pa.decompress(part, size_bytes, _CODEC, asbytes=True) for part, size_bytes in parts)
    return merge_batches(map(pickle.loads, contents)), pc.sum(rows["large_count"]).as_py() or 0


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector, of all threads, while many objects are made that all stay alive.

    While a text is read, the collector would look through all objects again and again and find nothing, which takes a
    third to a half of the time. If two threads pause it, it goes on with the first of them that ends.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Found:
    """What was read so far. Usage is summed when there are many rows of it."""

    def __init__(self) -> None:
        self._parts = [CollectedBatch()]

    def add(self, messages: pa.Table, rules: ReadingRules) -> None:
        with collector_paused():
            for begin, end in _slices(messages["value"]):
                self._parts += _read(messages.slice(begin, end - begin), rules)
                if sum(part.usage.num_rows for part in self._parts[1:]) >= _ROWS_AT_ONCE:
                    self._parts = [self.batch()]

    def batch(self) -> CollectedBatch:
        return merge_batches(self._parts)


def _slices(values: pa.ChunkedArray) -> Iterator[tuple[int, int]]:
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy()
    number = np.cumsum(sizes, dtype=np.int64) // BYTES_AT_ONCE
    begins = np.flatnonzero(np.diff(number, prepend=-1)).tolist()
    return zip(begins, [*begins, len(sizes)][1:], strict=True)


def _read(messages: pa.Table, rules: ReadingRules) -> Iterator[CollectedBatch]:
    is_null = pc.is_null(messages["value"])
    nulls = messages.filter(is_null)
    if nulls.num_rows:
        yield CollectedBatch(ignored_count=nulls.num_rows, append_times_ms=append_times(nulls))
        messages = messages.filter(pc.invert(is_null))
    if messages.num_rows:
        yield _read_json(messages, rules)


def _read_json(messages: pa.Table, rules: ReadingRules) -> CollectedBatch:
    values: list[bytes] = messages["value"].to_pylist()
    appended_at_ms = messages["appended_at_ms"].to_numpy()
    read = [_decoded(value) for value in values]
    events, times, places = _events_of(read, appended_at_ms)
    for place in np.unique(places[times.are_too_old(rules.max_event_age_ms)]).tolist():
        read[place] = None
    letters: list[DeadLetter] = []
    dead_count, ignored_count = 0, sum(found == [] for found in read)
    left = [place for place, found in enumerate(read) if found is None]
    for place in left:
        message = _read_with_causes(values[place], place, int(appended_at_ms[place]), rules)
        read[place] = message.events
        letters += message.letters
        dead_count += message.dead_count
        ignored_count += not message.events and not message.dead_count
    if left:
        events, times, _ = _events_of(read, appended_at_ms)
    columns = {name: _column(events, name) for name in COUNTED}
    return part_of_batch(messages, rules, (columns, times), (letters, dead_count), ignored_count)


def _events_of(read: Sequence[Sequence[Any] | None], appended_at_ms: Times) -> tuple[list[Any], EventTimes, Times]:
    events = list(chain.from_iterable(filter(None, read)))
    places = np.repeat(np.arange(len(read)), [len(found) if found else 0 for found in read])
    sent_ms = np.fromiter(_VALUES_OF["event_time_ms"](events), np.int64, len(events))
    return events, EventTimes(sent_ms, appended_at_ms[places]), places


def _column(events: Sequence[Any], name: str) -> pa.Array:
    kind, values = EVENT_SCHEMA.field(name).type, _VALUES_OF[name](events)
    if kind == pa.int64():
        with suppress(TypeError):  # None is among them
            return pa.array(np.fromiter(values, np.int64, len(events)))  # takes two thirds of the time
    return pa.array(values, kind)


def _values_of(name: str) -> Callable[[Sequence[Any]], list[Any]]:
    """Gives the values of a field of events. With the name in its code it takes half the time of `attrgetter`."""
    values: Callable[[Sequence[Any]], list[Any]] = eval(f"lambda events: [event.{name} for event in events]")  # noqa: S307
    return values


_VALUES_OF: Final = {name: _values_of(name) for name in _FIELDS}


# The quick step: msgspec with types made of the rules.


def _decoded(value: bytes) -> list[Any] | None:
    """The events of a message, by their fields as attributes; None if they are not all good, but for their age."""
    try:
        found = _DECODER.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):  # a ValidationError is a DecodeError
        return None
    # msgspec counts characters, the rule counts bytes. A text has no more bytes than its message.
    if len(value) > LARGEST_NAME_BYTES and (b"\\" in value or not value.isascii()):
        return None
    return found if isinstance(found, list) else [found]


def _event_type() -> Any:
    """A type with the fields of `UsageEvent` and their bounds. msgspec takes 64 bits of integers and no more."""

    def annotation(name: str) -> Any:
        kind = EVENT_SCHEMA.field(name).type
        if kind == pa.string():
            return Annotated[str, msgspec.Meta(min_length=_bound(name, "min_length"), max_length=LARGEST_NAME_BYTES)]
        if kind != pa.int64():
            return bool
        most = _bound(name, "le")
        return Annotated[int, msgspec.Meta(ge=_bound(name, "ge"), le=_LARGEST_BIGINT if most is None else most)]

    fields: list[Any] = [
        (name, annotation(name)) if one.is_required() else (name, annotation(name) | None, None)
        for name, one in UsageEvent.model_fields.items()
    ]
    # gc=False: events hold no other objects that could hold them, so the collector need not visit thousands of them.
    # Unknown fields are not for this step: msgspec would not look whether what it passes over is JSON.
    return msgspec.defstruct("Event", fields, forbid_unknown_fields=True, kw_only=True, gc=False)


def _bound(name: str, key: str) -> int | None:
    metadata = UsageEvent.model_fields[name].metadata
    return next((value for one in metadata if (value := getattr(one, key, None)) is not None), None)


_EVENT: Final[Any] = _event_type()
_DECODER: Final[Any] = msgspec.json.Decoder(_EVENT | list[_EVENT])


# The other step: any bytes, with causes.


class _Message(NamedTuple):
    events: list[Any]
    letters: list[DeadLetter]
    dead_count: int


def _read_with_causes(value: bytes, place: int, appended_at_ms: int, rules: ReadingRules) -> _Message:
    # A byte that is not UTF-8 becomes a lone surrogate, and again that byte in a dead letter.
    text = value.decode(errors="surrogateescape")
    try:
        parsed = _parsed(value, text)
    except ValueError:
        return _refused(place, NO_JSON, value)
    if isinstance(parsed, list):
        return _elements(parsed, text, place, appended_at_ms, rules)
    if not isinstance(parsed, dict):
        return _refused(place, NO_OBJECTS, value)
    cause = _cause(parsed, appended_at_ms, rules) if _is_unicode(text) else NO_UTF8
    return _Message([_event(parsed)], [], 0) if cause is None else _refused(place, cause, value)


def _refused(place: int, cause: str, value: bytes) -> _Message:
    return _Message([], [DeadLetter(place, None, cause, value)], 1)


def _elements(parsed: list[Any], text: str, place: int, appended_at_ms: int, rules: ReadingRules) -> _Message:
    no_utf8 = set()
    if not _is_unicode(text):
        no_utf8 = {index for index, (begin, end) in enumerate(_spans(text)) if not _is_unicode(text[begin:end])}
    events, refused = [], []
    for index, element in enumerate(parsed):
        if index in no_utf8:
            refused.append(Refused(index, NO_UTF8))
        elif not isinstance(element, dict):
            refused.append(Refused(index, NO_OBJECT))
        elif (cause := _cause(element, appended_at_ms, rules)) is not None:
            refused.append(Refused(index, cause))
        else:
            events.append(_event(element))
    if not refused:
        return _Message(events, [], 0)
    letters = letters_of_elements(
        place, refused, rules.letters_per_message, lambda wanted: _bytes_of_elements(text, wanted)
    )
    return _Message(events, letters, len(refused))


def _bytes_of_elements(text: str, wanted: Sequence[int]) -> list[bytes]:
    spans = islice(_spans(text), wanted[-1] + 1)
    kept = set(wanted)
    return [text[b:e].encode(errors="surrogateescape") for index, (b, e) in enumerate(spans) if index in kept]


def _spans(text: str) -> Iterator[tuple[int, int]]:
    at = _after_blanks(text, text.index("[") + 1)
    while text[at] != "]":
        _, end = _scanned(text, at)
        yield at, end
        at = _after_blanks(text, end)
        if text[at] == ",":
            at = _after_blanks(text, at + 1)


def _event(members: Mapping[str, Any]) -> Any:
    return _EVENT(**{name: members.get(name) for name in _FIELDS})


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parsed(value: bytes, text: str) -> Any:
    """The one JSON value of a text; ValueError if there is more than blanks around it, or it is too deeply nested."""
    if value.count(b"[") + value.count(b"{") > MOST_LEVELS and _levels(value) > MOST_LEVELS:
        raise ValueError
    parsed, end = _scanned(text, _after_blanks(text, 0))
    if _after_blanks(text, end) != len(text):
        raise ValueError
    return parsed


def _levels(value: bytes) -> int:
    """How many levels are nested; of what is not JSON, up to its first fault."""
    found = np.frombuffer(_ESCAPE.sub(b"..", value), np.uint8)
    is_outside = np.cumsum(found == ord('"')) % 2 == 0
    steps = np.isin(found, (ord("["), ord("{"))).astype(np.int8) - np.isin(found, (ord("]"), ord("}")))
    return int(np.cumsum(steps * is_outside, dtype=np.int64).max())


def _no_constant(_name: str) -> float:  # NaN and Infinity are not JSON
    raise json.JSONDecodeError(NO_JSON, "", 0)


def _long_integer(text: str) -> int:
    # What is cut off a longer number does not matter: it is beyond every bound in any case.
    return int(text[:_LONGEST_NUMBER])


_decoder: Final[Any] = json.JSONDecoder
_scan: Final[Any] = _decoder(parse_constant=_no_constant).scan_once
_scan_with_long_integers: Final[Any] = _decoder(parse_constant=_no_constant, parse_int=_long_integer).scan_once


def _scanned(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that begins at a place, and where it ends; ValueError if there is none."""
    for scan in (_scan, _scan_with_long_integers):
        try:
            found: tuple[Any, int] = scan(text, at)
        except StopIteration as no_value:
            raise ValueError from no_value
        except json.JSONDecodeError:
            raise
        except ValueError:  # Python reads integers of at most 4300 digits
            continue
        return found
    raise ValueError


def _after_blanks(text: str, at: int) -> int:
    return _BLANKS.match(text, at).end()  # type: ignore[union-attr]  # matches anywhere


def _cause(members: Mapping[str, Any], appended_at_ms: int, rules: ReadingRules) -> str | None:
    """The first rule that an event breaks, in the order of the model's fields, then that of its age; None if good."""
    try:
        event = UsageEvent.model_validate(members)
    except ValidationError as exc:
        return _cause_of(exc.errors(include_url=False)[0])
    is_too_old = event.event_time_ms < appended_at_ms - rules.max_event_age_ms
    return too_old(rules.max_event_age_ms) if is_too_old else None


_CAUSES: Final = {
    "missing": "present",
    "int_type": "a JSON integer",
    "bool_type": "true or false",
    "string_type": "a JSON string",
    "string_unicode": "Unicode text, without lone surrogates",
    "value_error": f"at most {LARGEST_NAME_BYTES} bytes of UTF-8",
}
"""What a field must be, by pydantic's type of error."""


def _cause_of(error: Any) -> str:
    (name,), kind, limits = error["loc"], error["type"], error.get("ctx", {})
    if kind == "string_too_short":
        return f"'{name}' must not be empty"
    if "ge" in limits:
        must = f"at least {limits['ge']}"
    elif "le" in limits or "lt" in limits:
        must = f"at most {limits['le'] if 'le' in limits else limits['lt'] - 1}"
    else:
        must = _CAUSES["missing" if error["input"] is None else kind]
    return f"'{name}' must be {must}"
