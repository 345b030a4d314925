"""The table `throttle_events`, and what is told of it."""
