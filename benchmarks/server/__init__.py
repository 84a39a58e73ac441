"""Benchmarks of a server under its design load."""
