"""Quality of wattune's decisions compared with other methods: `python -m benchmarks decisions`."""
