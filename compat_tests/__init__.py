"""Real clients over real sockets: each scenario runs against kbroker and against Apache Kafka, the judge."""
