"""What a job of some size needs, from what was measured: `kquota size`."""
