"""kbroker side by side with Apache Kafka, in one run: `python -m benchmarks`. A timing never fails anything here."""
