"""What every program of kquota tells Prometheus with: a registry of its own, and an endpoint."""
