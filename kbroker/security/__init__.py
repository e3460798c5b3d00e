"""Security without IO: credentials, SASL mechanisms, key stores, principals, ACLs. Knows no socket, loop or thread."""
