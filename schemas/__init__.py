"""Records that cross a boundary: one pydantic model a module, every other form derived from it.

`usage_event` and `throttle_record` are the values of topics; the `*_row` modules are the rows of Delta
tables. Arrow schema, Spark DDL and JSON Schema come from the models through `columns`. Nothing is imported
here, so that a program that needs one record loads neither pyarrow nor the other models.
"""
