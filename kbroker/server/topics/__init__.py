"""Topics and partitions for handlers: lookups, automatic creation, internal topics. Never answers a request."""
