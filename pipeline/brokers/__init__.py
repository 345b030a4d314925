"""Kafka's own client quotas, which brokers enforce one by one: read and changed by the requests of KIP-546."""
