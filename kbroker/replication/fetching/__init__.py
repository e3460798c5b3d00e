"""Copying partitions from their leaders: fetchers, fetch sessions, requests. Never decides which broker leads."""
