"""The Delta tables: their layout, the guarded appends of the job, the quota table and upkeep."""
