"""Training at a planned point: the one loop, the cap guard, checkpoints, and the same on a recorded curve.

train    a plan -> the training record
price    a recorded learning curve -> the record of the training that would have given it, at any point
Guard    answers readings above the cap, and temperatures above their limit
"""

from wattune.training.guard import PATIENCE_S, UP_AFTER_S, UP_BELOW, Guard, check_limit
from wattune.training.pricing import price
from wattune.training.trainer import train

__all__ = ["PATIENCE_S", "UP_AFTER_S", "UP_BELOW", "Guard", "check_limit", "price", "train"]
