"""Runs the group and transaction shards over the partitions of the internal topics. Holds no rules of groups itself."""
