"""The `kbroker` command line. Each command is a module, imported when it is called; a broker needs none of them."""
