"""kbroker: a Kafka broker in Python. Start reading at `kbroker.cli`."""
