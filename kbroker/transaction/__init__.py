"""Transactions as pure state machines: the state of each transactional id, and its records. Writes to no partition."""
