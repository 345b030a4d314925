"""Commands that run until they are stopped, and what they print."""
