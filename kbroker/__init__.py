"""kbroker: a Kafka broker in Python. This package root owns nothing; `kbroker.cli` is where a person starts."""
