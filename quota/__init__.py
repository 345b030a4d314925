"""The decisions: which quota applies, what rate a client has, and how long it must wait. No clock, no I/O.

Start at `quota.engine.QuotaEngine` and `quota.snapshot.QuotaSnapshot`.
"""
