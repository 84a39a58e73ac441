"""Simulated boards on virtual time."""
