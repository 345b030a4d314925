"""The Kafka cluster: where it is, how to sign in, which rights are needed, whether the topics are as they must be."""
