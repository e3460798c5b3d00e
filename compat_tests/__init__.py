"""Scenarios with real clients over real sockets, against kbroker and against Apache Kafka as the reference."""
