"""Client for any Kafka broker, used by the command line and between brokers. Stores no records."""
