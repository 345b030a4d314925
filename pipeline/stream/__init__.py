"""The Spark side: the session, the usage topic, and micro-batches that become small Arrow tables.

Everything that runs on an executor is a native SQL expression. So a cluster needs the connector jars, and none of this
code.
"""
