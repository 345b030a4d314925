"""Records that cross a boundary: one pydantic model per module. All other forms are derived from the models.

`usage_event` and `throttle_record` are the values of topics. The `*_row` modules are the rows of Delta tables.
`columns` derives Arrow schema, Spark DDL and JSON Schema. Nothing is imported here, so a program that needs one record
loads neither pyarrow nor the other models. See docs/design.md, "Contracts".
"""
