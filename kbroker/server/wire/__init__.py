"""Sockets and connections: reading frames, sending responses, memory limits. Knows nothing of requests."""
