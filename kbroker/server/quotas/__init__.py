"""Client quotas: which quota applies to a client, measured rates, and throttling. Never closes a connection."""
