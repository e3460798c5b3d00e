"""The consumer group protocol (KIP-848): members send heartbeats, the broker assigns; conversion from classic."""
