"""The decisions: which quota holds, what rate a client has, how long it must wait. No clock, no I/O.

Start at `quota.engine.QuotaEngine` and `quota.snapshot.QuotaSnapshot`.
"""
