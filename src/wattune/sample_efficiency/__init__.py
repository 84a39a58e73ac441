"""Samples to target per batch size, estimated from observed runs: posterior, prior, scheduling; numbers alone."""
