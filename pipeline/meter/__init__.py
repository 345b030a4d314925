"""Meters: what turns a broker's own observations into usage events on the usage topic."""
