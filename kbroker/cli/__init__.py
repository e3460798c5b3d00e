"""The command line. Each command is a module, imported when it is called; none holds anything that a broker needs."""
