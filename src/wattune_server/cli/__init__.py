"""Command line of the server; errors and exit codes are those of ``wattune``."""
