"""Commands that make a release. What operators run is in scripts and files beside them."""
