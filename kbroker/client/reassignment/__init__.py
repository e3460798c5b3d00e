"""Moves replicas between brokers: pure rules that plan the moves, and requests of stock APIs that run them."""
