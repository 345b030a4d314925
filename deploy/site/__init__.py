"""The site of docs/: what `make docs` builds."""
