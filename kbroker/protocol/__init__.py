"""Kafka's wire formats: message schemas, codecs, framing, record batches. Does no IO and reads no clock."""
