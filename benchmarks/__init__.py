"""Compares kbroker with Apache Kafka in one run: `python -m benchmarks`. Slow results never fail a run."""
