"""Every figure that the README claims, measured again by `make benchmarks`; results are kept in results/."""
