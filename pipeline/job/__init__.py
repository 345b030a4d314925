"""The streaming job: what builds its parts, starts and stops them, keeps its tables, and reports what is wrong."""
