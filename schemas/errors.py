"""What can go wrong at a boundary.

SchemaError
├── UnsupportedFieldType   a model declares a field the type table has no row for
├── UnreadableRecord       the value of a topic record is not what its schema says
└── RowsDoNotFit           an Arrow table can not be made into rows of a table
"""


class SchemaError(Exception):
    """Root of the errors of this package."""


class UnsupportedFieldType(SchemaError):
    """A field's Python type has no row in the type table.

    Attributes:
        model: name of the model.
        field: name of the field.
        annotation: the type found, as text.
    """

    def __init__(self, model: str, field: str, annotation: object) -> None:
        self.model = model
        self.field = field
        self.annotation = str(annotation)
        super().__init__(f"'{model}.{field}' must have a type of the type table; got {self.annotation}")


class UnreadableRecord(SchemaError):
    """The value of a topic record can not be read.

    Attributes:
        record: name of the model.
        cause: what is wrong, one line.
        value: the bytes as received.
    """

    def __init__(self, record: str, cause: str, value: bytes) -> None:
        self.record = record
        self.cause = cause
        self.value = value
        super().__init__(f"'{record}' must be readable JSON of its schema; got {cause}")


class RowsDoNotFit(SchemaError):
    """An Arrow table lacks a column of a model, or holds values its type does not take.

    Attributes:
        model: name of the row model.
        cause: what is wrong, one line.
    """

    def __init__(self, model: str, cause: str) -> None:
        self.model = model
        self.cause = cause
        super().__init__(f"'{model}' rows must have the columns of the model; got {cause}")
