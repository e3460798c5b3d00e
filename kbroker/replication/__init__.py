"""Partitions as a broker holds them: a log, its leadership, who waits for it. Never speaks to a client."""
