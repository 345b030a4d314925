"""The settings of a job: their model, and where their values come from."""
