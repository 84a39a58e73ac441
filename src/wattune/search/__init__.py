"""The choice of the operating point to measure next, and of the best one measured: numbers, no boards or models."""
