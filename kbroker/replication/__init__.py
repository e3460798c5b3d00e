"""Replicas of a broker: logs with their roles, the ISR, fetching from leaders, compaction. Never talks to a client."""
