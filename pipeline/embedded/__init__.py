"""What a machine without Kafka needs to try the pipeline: Java, the locked jars, a real broker, a load."""
