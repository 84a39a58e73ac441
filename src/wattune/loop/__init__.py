"""Loops whose steps are measured under a cap: the user's own in a session (``capped``), and the choice behind it."""
