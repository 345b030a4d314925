"""The Spark session: its JVM, settings and start."""
