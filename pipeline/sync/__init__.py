"""`kquota quotas sync`: the brokers' own quotas kept as the quota table and the usage say."""
