"""Commands that make a release. What operators run is in scripts and files next to them."""
