"""The shell: everything that touches Spark, Delta, Kafka, files, clocks or threads."""
