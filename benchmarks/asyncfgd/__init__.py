"""Training without a backward pass: memory, speed, accuracy, and where it would be chosen."""
