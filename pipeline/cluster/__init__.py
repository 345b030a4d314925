"""The Kafka cluster as every part reaches it: where it is, how to sign in, whether its topics are fit."""
