"""A release: the files that are published, and the lists of their parts (SBOM), made from the locks."""
