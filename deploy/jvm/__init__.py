"""The jars of Spark and the broker (jars.lock)."""
