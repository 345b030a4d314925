"""`kquota throttles …`."""
