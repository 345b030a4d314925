"""Roll-ups of what a job has written, made next to its decisions by Arrow, and not by streaming queries."""
