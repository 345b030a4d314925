"""The table `quotas`: read at a version, watched, edited under a lock, kept in files and in history."""
