"""The reporter that runs inside a broker, in Java, and how its jar is made."""
