"""Producer state: sequences, open transactions, snapshots. Never touches a socket or a clock."""
