"""Clocks for a program whose steps are only seen from outside, on a recorded board."""
