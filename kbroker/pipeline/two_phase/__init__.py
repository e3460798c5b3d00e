"""Exactly-once writes to topics: tasks write in transactions of their own, the driver decides and ends all of them.

Knows tasks and batches, but no Spark.
"""
