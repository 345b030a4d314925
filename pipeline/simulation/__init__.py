"""Usage from files, decided by the job's own engine and purgatory. The clock follows the events. No JVM, no tables."""
