"""Compaction: finds the cleanable part, maps keys to offsets, rewrites segments. Never changes an open log."""
