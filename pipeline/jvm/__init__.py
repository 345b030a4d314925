"""Java and the locked jars: finding, fetching and checking them, and an archive of classes that shortens a start."""
