"""The classic group protocol: members join, one of them assigns. Knows nothing of the consumer protocol (KIP-848)."""
