"""What a cluster's own usage and native quotas show, without a job, a topic or a table of kquota."""
