"""Forward gradients and AsyncFGD: training without a backward pass."""
