"""Generators of documentation pages, and the download of jars for tests; called by the Makefile and the tests.

Never imported by kbroker.
"""
