"""The jars of Spark and the broker: what is wanted (pom.xml) and what is locked (jars.lock)."""
