"""The driver side of throttles: decide, hold, renew, write to the outbox, publish."""
