"""Requests that administer a cluster: one module for each subject, used by the command line and pipelines."""
