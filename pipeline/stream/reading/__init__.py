"""How usage messages become sums and dead letters, in Spark and on the driver."""
