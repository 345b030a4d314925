"""Throttles: who is held until when, how that reaches the topic, and how a client follows it."""
