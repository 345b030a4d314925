"""Benchmarks, each a command: `python -m bench` runs them all."""
