"""Meters: they turn what a broker observes into usage events on the usage topic."""
