"""Drives the pure shards over partitions of the internal topics: append, replay, answer. Decides nothing of groups."""
