"""Our own client of any Kafka broker: for the command line and for brokers among themselves. Never holds a log."""
