"""A machine without Kafka tries the pipeline: a real broker, clients with a load, a meter and the job."""
