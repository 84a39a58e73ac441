"""Training at a planned point: the one loop, checkpoints, and the same on a recorded curve.

train    a plan -> the training record
price    a recorded learning curve -> the record of the training run that would have given it, at any point
evaluation_costs    the seconds of an evaluation and of a checkpoint at a plan's point
"""

from wattune.training.evaluation_costs import evaluation_costs as evaluation_costs
from wattune.training.pricing import price as price
from wattune.training.train import train as train
