"""The Spark side: a session, the usage topic, and micro-batches turned into small Arrow tables.

Everything that runs on an executor is a native SQL expression, so a cluster needs the connector jars and none of
this code.
"""
