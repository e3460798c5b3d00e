"""The metadata tree: one contract, two stores (SQLite, ZooKeeper), and the znodes of Kafka 3.9. Decides nothing."""
