"""Transactions, pure: what each transactional id is in the middle of, and its records. Never writes to a partition."""
