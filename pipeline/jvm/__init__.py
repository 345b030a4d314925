"""Java and the locked jars: finding, fetching and checking them, and the archive of classes that shortens a start."""
