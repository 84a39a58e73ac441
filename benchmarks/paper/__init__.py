"""The published study against wattune: simulated boards, choices and times of arXiv 2502.18323."""
