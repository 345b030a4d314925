"""Reads packed messages: usage events as the columns of an Arrow IPC stream; see `packed_stream`.

A message that is no such stream is one dead letter. An event that breaks a rule of `FIELD_RULES` is one too, with the
same cause as in JSON.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.stream.reading.collected_batch import DEAD_LETTER_SCHEMA
from pipeline.stream.reading.event_columns import EVENT_SCHEMA, usage_of_columns
from pipeline.stream.reading.field_rules import (
    FIELD_RULES,
    FieldRule,
    must_be_at_least,
    must_be_at_most,
    must_be_present,
    must_be_shorter,
    must_be_younger,
    must_not_be_empty,
)
from pipeline.stream.reading.packed_stream import PackedReader, PackedRefused
from pipeline.stream.reading.read_part import ReadPart
from pipeline.stream.reading.reading_rules import ReadingRules

_NO_EVENTS: Final = pa.RecordBatch.from_arrays([pa.nulls(0, one.type) for one in EVENT_SCHEMA], schema=EVENT_SCHEMA)


def read_packed(messages: pa.Table, rules: ReadingRules) -> ReadPart:
    """Read packed messages and sum their events.

    Args:
        messages: `value` BINARY, each beginning with `PACKED_BEGIN`; `topic`, `partition`, `offset`, and
            `appended_at_ms` BIGINT.
        rules: Of the job.
    """
    reader, batches, places, letters = PackedReader(), [], [], []
    values = messages["value"].to_pylist()
    for place, value in enumerate(values):
        try:
            batch = reader.read(value)
        except PackedRefused as exc:
            letters.append((place, None, str(exc), value))
            continue
        if batch.num_rows:
            batches.append(batch)
            places.append(place)
    lengths = [batch.num_rows for batch in batches]
    events = pa.concat_batches([_NO_EVENTS, *batches])
    rows = np.repeat(np.array(places, np.int64), lengths)
    appended_at_ms = messages["appended_at_ms"].to_numpy()[rows]
    broken = _broken(events, appended_at_ms, rules.max_event_age_ms)
    if broken.any():
        dead, causes = broken > 0, _causes(rules.max_event_age_ms)
        elements = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        texts = map(_text, events.filter(pa.array(dead)).to_pylist())
        found = (rows[dead].tolist(), elements[dead].tolist(), [causes[number - 1] for number in broken[dead].tolist()])
        letters += zip(*found, texts, strict=True)
        events, appended_at_ms = events.filter(pa.array(~dead)), appended_at_ms[~dead]
    return replace(
        usage_of_columns(events, appended_at_ms, rules),
        dead_letters=_dead_letters(messages, letters),
        ignored_count=len(values) - len(batches) - sum(element is None for _, element, *_ in letters),
        packed_event_count=len(rows),
    )


def _broken(
    events: pa.RecordBatch, appended_at_ms: npt.NDArray[np.int64], max_event_age_ms: int
) -> npt.NDArray[np.int64]:
    """For each event the number of the first rule that it breaks, from 1, in the order of `_causes`; 0 for none."""
    broken = np.zeros(events.num_rows, np.int64)
    too_old = pc.less(events["event_time_ms"], pa.array(appended_at_ms - max_event_age_ms))
    masks = [mask for rule in FIELD_RULES for _, mask in _faults(rule, events[rule.name])]
    for number, mask in reversed(list(enumerate([*masks, too_old], start=1))):
        if pc.any(mask).as_py():
            broken[mask.fill_null(False).to_numpy(zero_copy_only=False)] = number
    return broken


def _causes(max_event_age_ms: int) -> Sequence[str]:
    found = [
        cause for rule in FIELD_RULES for cause, _ in _faults(rule, pa.nulls(0, EVENT_SCHEMA.field(rule.name).type))
    ]
    return [*found, must_be_younger(max_event_age_ms)]


def _faults(rule: FieldRule, column: Any) -> Iterator[tuple[str, Any]]:
    """The rules of a field, in the order of `event_rules.broken_rule`: cause, and where it is broken."""
    if rule.required:
        yield must_be_present(rule), pc.is_null(column)
    if not rule.may_be_empty:
        yield must_not_be_empty(rule), pc.equal(pc.binary_length(column), 0)
    if rule.max_utf8_bytes is not None:
        yield must_be_shorter(rule), pc.greater(pc.binary_length(column), rule.max_utf8_bytes)
    if rule.at_least is not None:
        yield must_be_at_least(rule), pc.less(column, rule.at_least)
    if rule.at_most is not None:
        yield must_be_at_most(rule), pc.greater(column, rule.at_most)


def _text(element: dict[str, Any]) -> bytes:
    """An event as JSON: what its dead letter holds."""
    fields = {name: value for name, value in element.items() if value is not None}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _dead_letters(messages: pa.Table, letters: Sequence[tuple[int, int | None, str, bytes]]) -> pa.Table:
    if not letters:
        return DEAD_LETTER_SCHEMA.empty_table()
    rows, elements, causes, values = zip(*letters, strict=True)
    # Without the values: a large one, taken for each of its events, would not fit into a column.
    columns = messages.select(DEAD_LETTER_SCHEMA.names[:4]).take(pa.array(rows, pa.int64())).columns
    columns += [pa.array(elements, pa.int64()), pa.array(causes), pa.array(values, pa.binary())]
    return pa.table(dict(zip(DEAD_LETTER_SCHEMA.names, columns, strict=True))).cast(DEAD_LETTER_SCHEMA)
