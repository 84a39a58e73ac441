"""Profiling of any program, in whatever language it is written."""
