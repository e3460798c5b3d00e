"""Schemas of all versions, one file for each API. No behaviour."""
