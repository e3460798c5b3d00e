"""Describes and alters the configs of topics, brokers, groups, loggers and client metrics. Never applies a config."""
