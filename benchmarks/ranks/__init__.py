"""Several devices under one budget: real data-parallel jobs over gloo, on simulated boards."""
