"""Benchmarks. Each is a command; `python -m bench` runs all of them."""
