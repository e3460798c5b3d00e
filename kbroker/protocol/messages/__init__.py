"""One file for each API: the schema of all its versions. Holds no behaviour."""
