"""Compiles a message schema at one version to encode and decode functions, equivalent to the schema's constructs."""
