"""Object stores: how they are reached, and whether they do what tables need."""
