"""The purgatory beside its peers: raw timers, and the published purgatory benchmark."""
