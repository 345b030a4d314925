"""The table `broker_quotas`: what the sync has written to the brokers."""
