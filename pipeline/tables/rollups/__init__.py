"""Roll-ups of what a job has written, made beside its decisions by Arrow, and not by streaming queries."""
