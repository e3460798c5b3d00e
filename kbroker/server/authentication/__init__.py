"""Logins of SASL connections: states, mechanisms, session ends. Knows no socket, and handles no other request."""
