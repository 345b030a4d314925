"""The errors of this package.

SchemaError
├── UnsupportedFieldType   a model has a field whose type is not in the type table
├── UnreadableRecord       the value of a topic record is not what its schema says
└── RowsDoNotFit           an Arrow table cannot be made into rows of a model
"""


class SchemaError(Exception):
    """Root of the errors of this package."""


class UnsupportedFieldType(SchemaError):
    """The Python type of a field of a model is not in the type table."""

    def __init__(self, model: str, field: str, annotation: object) -> None:
        super().__init__(f"{model}.{field} has the type {annotation}, which is not in the type table")


class UnreadableRecord(SchemaError):
    """The value of a topic record cannot be read: the name of its model, the cause in one line, the bytes received."""

    def __init__(self, record: str, cause: str, value: bytes) -> None:
        self.record = record
        self.cause = cause
        self.value = value
        super().__init__(f"the value is not a {record}: {cause}")


class RowsDoNotFit(SchemaError):
    """An Arrow table lacks a column of a model, or has values that do not fit: the cause, in one line."""

    def __init__(self, model: str, cause: str) -> None:
        self.model = model
        self.cause = cause
        super().__init__(f"the table cannot be made into rows of {model}: {cause}")
