"""Pure parts of security: SASL mechanisms, credentials and tokens, JAAS configs. Knows no socket, loop or thread."""
