"""The list of all parts of a release (SBOM), made from the two locks."""
