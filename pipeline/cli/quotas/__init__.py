"""`kquota quotas`: see, edit, version and restore the quota table."""
