"""Usage from files through the job's own engine and purgatory, on a clock set by the events. No JVM, no tables."""
