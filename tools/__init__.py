"""Set-up of the test ground, called by the Makefile and the tests. Never imported by kbroker."""
