"""Stored usage decided again: to verify stored decisions, and to find out what other quotas would have done."""
