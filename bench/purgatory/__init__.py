"""The purgatory compared with others: timers alone, and the published purgatory benchmark."""
