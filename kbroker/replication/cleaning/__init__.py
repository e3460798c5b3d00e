"""Compaction of this broker's logs: choosing a log, its pace, its task. Never reads a record: `kbroker.log` does."""
