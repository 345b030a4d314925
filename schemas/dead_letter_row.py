"""A row of `dead_letters`: bytes on the usage topic that are not a usage event."""

from pydantic import Field

from schemas.columns import Day, EpochMs, Instant, Name, Number, PipelineRow, Raw, Text


class DeadLetterRow(PipelineRow):
    """A record that was refused, or one element of its array, with the cause and its place.

    At most `stream.dead_letters_per_message` elements of one record have a row. The cause of the last one says how many
    more were refused. `batches.dead_count` counts all of them.
    """

    batch_id: Number = Field(description="The micro-batch that read it.")
    appended_at_ms: EpochMs = Field(description="When the broker appended the record.")
    appended_at: Instant = Field(description="`appended_at_ms` as a timestamp.")
    topic: Name = Field(description="Topic of the record.")
    partition: Number = Field(description="Partition of the record.")
    offset: Number = Field(description="Offset of the record.")
    element_index: Number | None = Field(description="Position in the array, from 0; null for the whole record.")
    cause: Text = Field(description="What is wrong: the field, and the rule that it breaks.")
    value: Raw = Field(description="The value of the record, unchanged; for an element its own text.")
    date: Day = Field(description="UTC day of `appended_at_ms`; the partition.")
