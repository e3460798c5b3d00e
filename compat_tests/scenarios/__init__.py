"""Scenarios: behaviour that clients expect of a broker. They do not know which broker they test."""
