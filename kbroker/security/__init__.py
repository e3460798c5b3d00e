"""Credentials, key material and rules of access. Pure: knows no loop, no socket and no thread, and asks no clock."""
