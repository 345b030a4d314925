"""Kept usage decided again: to check stored decisions, and to ask what other quotas would have done."""
