"""The Spark side: the session, the usage topic, and micro-batches that become small Arrow tables."""
