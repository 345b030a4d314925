"""The command line. What loads Spark, Kafka, Arrow or HTTP is imported in its command, so that `--help` stays quick."""
