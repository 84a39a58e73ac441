"""Training at a planned point: the one loop, checkpoints, and the same on a recorded curve.

train    a plan -> the training record
price    a recorded learning curve -> the record of the training run that would have given it, at any point
"""

from wattune.training.pricing import price
from wattune.training.train import train

__all__ = ["price", "train"]
