"""Configs of brokers, topics and groups: names, types, defaults, validation, documentation. Reads no files."""
