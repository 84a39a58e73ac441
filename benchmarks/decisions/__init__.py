"""How good the decisions are, beside other ways to make them: `python -m benchmarks decisions`."""
