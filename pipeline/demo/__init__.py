"""The demo, for a machine without Kafka: a real broker, clients with a load, a meter and the job."""
