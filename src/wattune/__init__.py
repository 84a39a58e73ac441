"""wattune: train fastest under a power cap, batch size and GPU clock chosen together."""
