"""Delayed operations: timing wheels, timer, purgatory, memory pool.

The package knows neither quotas nor Spark nor Kafka. Its structures read no clock: time is an argument, `now_ms`.
"""
