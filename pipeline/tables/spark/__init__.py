"""Tables through Spark: by their address, or by their names in a catalog."""
