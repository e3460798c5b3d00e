"""Construct tree + version -> specialised encode and decode functions. Never changes what the construct means."""
