"""The work of a training step, counted from the operations that PyTorch would run."""
