"""Benchmarks behind every figure in the README, run by `make benchmarks`; results are stored in results/."""
