"""Functions of the group and transaction handlers: finding shards, error responses, producer ids. Holds no rules."""
