"""Training without a backward pass: memory, speed, accuracy, and the cases in which it would be chosen."""
